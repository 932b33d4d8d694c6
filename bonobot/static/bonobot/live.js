// Live updates: one stream of server-sent events for each page. The page names its topics with
// data-topic="approvals"; each change is a `bonobot:change` event of the document, with the topic, its
// version, and whether it is that of the page as it was loaded.
"use strict";

(() => {
  const MIN_RETRY_MS = 1000;
  const MAX_RETRY_MS = 60_000;
  // A page that gets its first versions later, such as one in a background tab, may be outdated.
  const FRESH_MS = 5000;
  const NOTIFY_KEY = "bonobot-notify";
  // Lists of the admin that change without their own script, by the class of the page's body.
  const LIST_TOPICS = {
    "model-agent": "agents",
    "model-server": "servers",
    "model-session": "sessions",
    "model-elicitationrequest": "elicitations",
    "model-accessrequest": "access_requests",
  };
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const versions = new Map();
  let source = null;
  let retryMs = MIN_RETRY_MS;
  let retryTimer = 0;
  let hasOtherStream = false;
  let hasOpened = false;

  const settings = () => document.getElementById("live");
  const wantsNotifications = () =>
    "Notification" in window && Notification.permission === "granted" && localStorage.getItem(NOTIFY_KEY) === "on";

  const findListTopic = () =>
    Object.entries(LIST_TOPICS).find(([name]) => document.body.matches(`.change-list.${name}`))?.[1];

  function listTopics() {
    const listTopic = findListTopic();
    return new Set([
      "counts",
      ...queryAll("[data-topic]").map((element) => element.dataset.topic),
      ...(listTopic ? [listTopic] : []),
    ]);
  }

  function openStream() {
    clearTimeout(retryTimer);
    const url = settings()?.dataset.liveUrl;
    if (!url || source || hasOtherStream || (document.hidden && !wantsNotifications())) return;
    const topics = listTopics();
    const query = new URLSearchParams([...topics].map((topic) => ["topic", topic]));
    source = new EventSource(`${url}?${query}`);
    for (const topic of topics) source.addEventListener(topic, (event) => handleChange(topic, event.data));
    source.addEventListener("error", retryLater);
    source.addEventListener("open", () => {
      hasOpened = true;
      showState("on");
    });
  }

  function closeStream() {
    clearTimeout(retryTimer);
    source?.close();
    source = null;
    showState("off");
  }

  // The delay doubles up to a minute, with a random part so that many pages don't return at once.
  function retryLater() {
    const isRefused = source?.readyState === EventSource.CLOSED && !hasOpened;
    closeStream();
    if (isRefused) return; // nothing to follow
    retryTimer = setTimeout(openStream, retryMs * (0.5 + Math.random()));
    retryMs = Math.min(MAX_RETRY_MS, retryMs * 2);
  }

  function showState(state) {
    for (const element of queryAll("[data-live-state]")) element.dataset.liveState = state;
  }

  function handleChange(topic, version) {
    retryMs = MIN_RETRY_MS;
    const previous = versions.get(topic);
    if (previous === version) return;
    versions.set(topic, version);
    if (topic === "counts") showCounts(JSON.parse(version), previous ? JSON.parse(previous) : null);
    const detail = { topic, version, previous, first: previous === undefined && performance.now() < FRESH_MS };
    document.dispatchEvent(new CustomEvent("bonobot:change", { detail }));
  }

  // Numbers in the navigation and in tabs: data-live-count="calls". The title has the number of the entry
  // *Approvals*: of what this person can answer.
  function showCounts(counts, previous) {
    for (const [name, count] of Object.entries(counts)) {
      for (const element of queryAll(`[data-live-count="${name}"]`)) {
        element.textContent = count.toLocaleString(document.documentElement.lang);
        element.hidden = count === 0;
      }
    }
    const name = settings().dataset.titleCount;
    const count = counts[name] ?? 0;
    document.title = (count ? `(${count}) ` : "") + document.title.replace(/^\s*\(\d+\) /, "").trim();
    if (previous && count > previous[name]) notifyAboutCount(count);
  }

  function notifyAboutCount(count) {
    const { notifyTitle, notifyUrl } = settings().dataset;
    if (!wantsNotifications() || !document.hidden) return;
    const notification = new Notification(`${notifyTitle}: ${count}`, { tag: "bonobot-approvals" });
    notification.addEventListener("click", () => {
      window.focus();
      location.assign(notifyUrl);
    });
  }

  // The button that turns notifications of this browser on and off: data-notify.
  function setUpNotifyButton(button) {
    if (!("Notification" in window)) return;
    const show = () => button.setAttribute("aria-pressed", String(wantsNotifications()));
    button.hidden = false;
    show();
    button.addEventListener("click", async () => {
      if (wantsNotifications()) localStorage.setItem(NOTIFY_KEY, "off");
      else if ((await Notification.requestPermission()) === "granted") localStorage.setItem(NOTIFY_KEY, "on");
      show();
    });
  }

  // A list of the admin: known rows are updated in place; new ones are only counted, because they
  // would move the others.
  async function refreshList(event) {
    if (event.detail.first || event.detail.topic !== findListTopic()) return;
    const list = document.getElementById("result_list");
    const answer = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    if (!list) {
      // The first object replaces the text of an empty list.
      if (fresh.getElementById("result_list")) location.reload();
      return;
    }
    const readKey = (row) => row.querySelector("th a, td a")?.getAttribute("href") ?? "";
    const rows = new Map(queryAll("tbody tr", list).map((row) => [readKey(row), row]));
    let newCount = 0;
    for (const row of queryAll("#result_list tbody tr", fresh)) {
      const old = rows.get(readKey(row));
      if (!old) newCount += 1;
      else if (old.innerHTML !== row.innerHTML) updateCells(old, row);
    }
    showNewRows(list, newCount);
  }

  function updateCells(old, row) {
    const cells = [...row.cells];
    [...old.cells].forEach((cell, index) => {
      const isBusy = cell.contains(document.activeElement) || cell.querySelector("input");
      if (!isBusy && cells[index] && cell.innerHTML !== cells[index].innerHTML) cell.innerHTML = cells[index].innerHTML;
    });
  }

  function showNewRows(list, count) {
    let link = document.querySelector("a[data-new-rows]");
    if (!link && count) {
      link = document.createElement("a");
      link.href = location.href;
      link.className = "bb-new";
      link.dataset.newRows = "";
      link.setAttribute("role", "status");
      list.before(link);
    }
    if (!link) return;
    link.hidden = count === 0;
    link.textContent = (settings().dataset.newRows ?? "#").replace("#", count);
  }

  // A part of the page that is loaded again when its topic changes: data-refreshes, with an ID.
  async function refreshParts(event) {
    const parts = queryAll("[data-refreshes]").filter((part) => part.dataset.topic === event.detail.topic);
    if (!parts.length || event.detail.first) return;
    const answer = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    for (const part of parts) {
      const replacement = fresh.getElementById(part.id);
      if (replacement && replacement.innerHTML !== part.innerHTML) replacePart(part, replacement);
    }
  }

  function replacePart(part, replacement) {
    const focused = part.contains(document.activeElement) && document.activeElement.getAttribute("href");
    part.replaceWith(replacement);
    if (focused) replacement.querySelector(`[href="${CSS.escape(focused)}"]`)?.focus({ preventScroll: true });
  }

  document.addEventListener("bonobot:change", refreshList);
  document.addEventListener("bonobot:change", refreshParts);
  // The chat has a stream of its own while the agent works.
  document.addEventListener("bonobot:session", (event) => {
    hasOtherStream = event.detail.open;
    if (hasOtherStream) closeStream();
    else openStream();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden && !wantsNotifications()) closeStream();
    else openStream();
  });
  addEventListener("pagehide", closeStream);
  addEventListener("pageshow", (event) => event.persisted && openStream());
  // After the other scripts, which may announce a stream of their own.
  addEventListener("load", () => {
    queryAll("[data-notify]").forEach(setUpNotifyButton);
    openStream();
  });
})();
