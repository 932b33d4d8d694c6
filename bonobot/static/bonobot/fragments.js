// Fragments of pages that the server renders, already escaped there: nothing is built from data. Every other
// script can use them; every page works without scripts.
"use strict";

const bonobotFragments = (() => {
  const FRAGMENT = { "Bonobot-Fragment": "1" };
  const TEXT_FIELDS = "input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]";
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const readCsrfToken = () => document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

  function parseHtml(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  async function fetchFragment(url, options = {}, headers = {}) {
    const csrf = options.method === "POST" ? { "X-CSRFToken": readCsrfToken() } : {};
    const allHeaders = { ...FRAGMENT, ...csrf, ...headers };
    const answer = await fetch(url, { credentials: "same-origin", ...options, headers: allHeaders });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login/")) {
      // drafts.js keeps what was typed, so forms.js doesn't ask before the page is left.
      document.dispatchEvent(new CustomEvent("bonobot:signed-out"));
      location.reload();
    }
    return answer;
  }

  // Replace parts of the page with those of a fragment: data-part="name". Returns the remaining fragment.
  function replaceParts(fragment) {
    for (const part of queryAll("[data-part]", fragment)) {
      const old = document.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
      if (old) old.replaceWith(part);
      else part.remove();
    }
    return fragment;
  }

  // A part that is loaded when it is first opened: data-piece="URL".
  async function loadOpenedPart(event) {
    const container = event.target.open ? event.target.querySelector("[data-piece]") : null;
    if (!container) return;
    const url = container.dataset.piece;
    container.removeAttribute("data-piece");
    try {
      const answer = await fetchFragment(url);
      container.replaceChildren(parseHtml(await answer.text()));
    } catch {
      container.dataset.piece = url;
    }
  }

  // A slow part, loaded after the page: data-asked="URL".
  async function loadPart(container) {
    try {
      const answer = await fetchFragment(container.dataset.asked);
      container.replaceChildren(parseHtml(await answer.text()));
    } catch {
      location.assign("?look=1");
    }
    container.removeAttribute("aria-busy");
  }

  // Parts that change on the server: data-parts="URL", loaded again at each change of data-topic that
  // live.js reports, while the page contains what data-while="selector" selects, if set.
  // Two topics can have the same URL: an answer is dropped if a later request has been answered.
  const sentRequests = new Map();
  const shownRequests = new Map();
  function refreshPart(container) {
    document.addEventListener("bonobot:change", async (event) => {
      if (event.detail.topic !== container.dataset.topic) return;
      if (container.dataset.while && !document.querySelector(container.dataset.while)) return;
      const url = container.dataset.parts;
      const number = (sentRequests.get(url) ?? 0) + 1;
      sentRequests.set(url, number);
      const answer = await fetchFragment(url).catch(() => null);
      if (!answer?.ok) return;
      const parts = parseHtml(await answer.text());
      if (number < (shownRequests.get(url) ?? 0)) return;
      shownRequests.set(url, number);
      replaceParts(parts);
    });
  }

  // Or uses a dialog, or a key of the browser: the keys of pages do nothing then.
  const isTyping = (event) =>
    event.ctrlKey ||
    event.metaKey ||
    event.altKey ||
    event.defaultPrevented ||
    event.target.closest(TEXT_FIELDS) ||
    document.querySelector("dialog[open]");

  document.addEventListener("toggle", loadOpenedPart, true);
  document.addEventListener("DOMContentLoaded", () => {
    queryAll("[data-asked]").forEach(loadPart);
    queryAll("[data-parts]").forEach(refreshPart);
  });
  return { fetchFragment, isTyping, parseHtml, queryAll, readCsrfToken, replaceParts };
})();
