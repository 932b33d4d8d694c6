// Servers that are connected from a page: data-connect="URL", whose result replaces the content.
"use strict";

(() => {
  const { fetchFragment, parseHtml, queryAll, replaceParts } = bonobotFragments;
  const { updateCounts } = bonobotLists;

  // Discover servers one after the other, and show each result in its container.
  const CONNECTED_AT_ONCE = 4;

  async function connectServers() {
    const waiting = queryAll("[data-connect]");
    const connectNext = async () => {
      for (let next = waiting.shift(); next; next = waiting.shift()) await connectServer(next);
    };
    await Promise.all(Array.from({ length: CONNECTED_AT_ONCE }, connectNext));
    // The page then groups the servers by their results.
    if (document.querySelector("[data-reloads-when-connected]")) location.reload();
  }

  async function connectServer(container) {
    const url = container.dataset.connect;
    container.removeAttribute("data-connect");
    try {
      const answer = await fetchFragment(url, { method: "POST" });
      container.replaceChildren(replaceParts(parseHtml(await answer.text())));
    } catch {
      container.textContent = container.dataset.failed ?? "";
    }
    updateCounts(document);
    for (const bar of queryAll("progress[data-checks]")) {
      bar.value += 1;
      document.querySelector("[data-check-count]").textContent = bar.value;
    }
    const next = container.querySelector("[data-then]")?.dataset.then;
    if (next) location.assign(next);
  }

  document.addEventListener("DOMContentLoaded", connectServers);
})();
