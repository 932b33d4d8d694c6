// The audit log: the panel of an entry, turns that fold, and the live tail. Without this script, its links
// open pages.
"use strict";

(() => {
  const { fetchFragment, isTyping, parseHtml, queryAll } = bonobotFragments;

  function setUpAudit(log) {
    const panel = log.querySelector("[data-panel]");
    const container = log.querySelector("[data-audit-rows]");
    const tail = log.querySelector("[data-audit-tail]");
    const LISTED = "[data-entry], [data-turn-head]";
    const rows = () => queryAll("[data-entry]", container);
    const current = () => container.querySelector(":is([data-entry], [data-turn-head])[aria-current]");
    const unfoldedTurns = new Set();
    const link = (row) => row?.querySelector("[data-panel-url]");
    let lastRequest = 0;

    async function open(row, push = true) {
      if (!row) return;
      mark(row);
      const number = ++lastRequest;
      const answer = await fetchFragment(link(row).dataset.panelUrl).catch(() => null);
      if (number !== lastRequest) return;
      if (!answer?.ok) return location.assign(link(row).href);
      panel.replaceChildren(parseHtml(await answer.text()));
      panel.hidden = false;
      if (push) history.pushState({ entry: row.dataset.entry }, "", link(row).href);
    }

    // Calls of one model turn fold to a row above them.
    function unfold(turnId, isOpen) {
      if (isOpen) unfoldedTurns.add(turnId);
      else unfoldedTurns.delete(turnId);
      showFolds();
    }

    function showFolds() {
      for (const head of queryAll("[data-turn-head]", container)) {
        const isOpen = unfoldedTurns.has(head.dataset.turnHead);
        head.querySelector("[aria-expanded]").setAttribute("aria-expanded", String(isOpen));
      }
      for (const row of rows()) {
        row.toggleAttribute("data-folded", Boolean(row.dataset.turnId) && !unfoldedTurns.has(row.dataset.turnId));
      }
    }

    const isUnfolded = (head) => unfoldedTurns.has(head.dataset.turnHead);
    const toggle = (head) => unfold(head.dataset.turnHead, !isUnfolded(head));

    function mark(row) {
      if (row.hasAttribute("data-folded")) unfold(row.dataset.turnId, true);
      current()?.removeAttribute("aria-current");
      row.setAttribute("aria-current", "true");
      row.scrollIntoView({ block: "nearest" });
    }

    function close(push = true) {
      panel.hidden = true;
      panel.replaceChildren();
      link(current())?.focus({ preventScroll: true });
      current()?.removeAttribute("aria-current");
      const query = log.dataset.query;
      if (push) history.pushState({}, "", log.dataset.url + (query ? `?${query}` : ""));
    }

    // J and K move the open entry, or only the selection while none is open.
    function move(step) {
      const all = queryAll(LISTED, container).filter((row) => !row.hasAttribute("data-folded"));
      const at = all.indexOf(current());
      const next = all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + step))];
      if (!next || next === current()) return;
      if (panel.hidden || !link(next)) mark(next);
      else open(next);
    }

    function handleKey(event) {
      const isElsewhere = event.target.closest("dialog[open], details[open]");
      if (event.key === "Escape" && !panel.hidden && !isElsewhere) return close();
      if (isTyping(event) || event.shiftKey) return;
      if (event.key === "j") move(1);
      else if (event.key === "k") move(-1);
      else if (event.key === "Enter" && current() && event.target === document.body) openCurrent();
      else if (event.key.startsWith("Arrow") && foldCurrent(event.key)) focusToggle();
      else if (event.key === "/") log.querySelector("[data-search]").focus();
      else return;
      event.preventDefault();
      event.stopImmediatePropagation();
    }

    function openCurrent() {
      if (link(current())) open(current());
      else toggle(current());
    }

    // The arrows of a tree: right unfolds the calls of the selected turn, left folds them.
    function foldCurrent(key) {
      const turnId = current()?.dataset.turnHead ?? current()?.dataset.turnId;
      if (!turnId || !["ArrowLeft", "ArrowRight"].includes(key) || !panel.hidden) return false;
      mark(container.querySelector(`[data-turn-head="${turnId}"]`));
      unfold(turnId, key === "ArrowRight");
      return true;
    }

    const focusToggle = () => current().querySelector("[aria-expanded]").focus({ preventScroll: true });

    // With the live tail on, new entries are added on top; otherwise they are counted.
    async function refresh(event) {
      if (event?.detail.topic !== "audit" || event.detail.first || /[?&]p=/.test(location.search)) return;
      const query = log.dataset.query;
      const isFollowing = tail.getAttribute("aria-checked") === "true";
      const headers = isFollowing ? { "Bonobot-Summary": "1" } : {};
      const url = log.dataset.url + (query ? `?${query}` : "");
      const answer = await fetchFragment(url, {}, headers).catch(() => null);
      if (!answer?.ok) return;
      const fragment = parseHtml(await answer.text());
      const fresh = queryAll(LISTED, fragment);
      const known = new Map(queryAll(LISTED, container).map((row) => [getKey(row), row]));
      const added = fresh.filter((row) => row.dataset.entry && !known.has(getKey(row)));
      const grown = new Set(isFollowing ? [] : added.map((row) => row.dataset.turnId).filter(Boolean));
      for (const row of fresh) if (!grown.has(row.dataset.turnHead)) updateRow(known.get(getKey(row)), row);
      showSummary(fragment);
      const body = container.querySelector("[data-audit-body]");
      if (!body) {
        if (fresh.length) container.replaceChildren(fragment);
      } else if (isFollowing) {
        placeRows(body, fresh, known);
        showNew(0);
      } else showNew(added.length, fresh.length);
      showFolds();
    }

    const getKey = (row) => row.dataset.entry ?? `turn ${row.dataset.turnHead}`;

    // The rows of the first page come first, in its order; those that it no longer has follow.
    function placeRows(body, fresh, known) {
      let next = body.firstElementChild;
      for (const row of fresh) {
        const placed = known.get(getKey(row)) ?? row;
        for (const name of ["data-turn", "data-turn-id"]) {
          if (row.hasAttribute(name)) placed.setAttribute(name, row.getAttribute(name));
          else placed.removeAttribute(name);
        }
        if (placed === next) next = next.nextElementSibling;
        else body.insertBefore(placed, next);
      }
    }

    // The numbers above the rows and the bars, which only a live tail loads again.
    function showSummary(fragment) {
      for (const part of queryAll("[data-new-summary]", fragment)) {
        const shown = log.querySelector(`[data-audit-summary="${part.dataset.newSummary}"]`);
        shown.replaceChildren(part.content.cloneNode(true));
        part.remove();
      }
    }

    function updateRow(old, row) {
      if (!old) return;
      [...old.cells].forEach((cell, index) => {
        const html = row.cells[index]?.innerHTML;
        const isChanged = html !== undefined && cell.innerHTML !== html;
        if (isChanged && !cell.contains(document.activeElement)) cell.innerHTML = html;
      });
    }

    function showNew(count, page) {
      const newLink = log.querySelector("[data-audit-new]");
      newLink.hidden = count === 0;
      const text = count && count === page ? `${count}+` : String(count);
      newLink.textContent = (document.getElementById("live").dataset.newRows ?? "#").replace("#", text);
    }

    function setUpTail() {
      tail.hidden = false;
      tail.addEventListener("click", () => {
        const isOn = tail.getAttribute("aria-checked") !== "true";
        tail.setAttribute("aria-checked", String(isOn));
        if (isOn) refresh({ detail: { topic: "audit" } });
      });
    }

    // Filters and actions are folded on phones.
    function setUpUnfold(button) {
      button.addEventListener("click", () => {
        button.setAttribute("aria-expanded", String(button.getAttribute("aria-expanded") !== "true"));
      });
    }

    // Dragging over the bars selects a range.
    function setUpRange(histogram) {
      let svg, bars;
      let first = -1;
      let last = -1;
      const find = (event) => {
        const box = svg.getBoundingClientRect();
        const at = Math.floor(((event.clientX - box.left) / box.width) * bars.length);
        return Math.min(bars.length - 1, Math.max(0, at));
      };
      histogram.addEventListener("dragstart", (event) => event.preventDefault());
      histogram.addEventListener("pointerdown", (event) => {
        svg = event.target.closest("svg");
        if (event.button !== 0 || !svg) return;
        bars = queryAll("a", svg);
        first = last = find(event);
      });
      addEventListener("pointermove", (event) => {
        if (first < 0) return;
        last = find(event);
        const range = svg.querySelector("[data-range]");
        const width = 1000 / bars.length;
        range.toggleAttribute("hidden", first === last);
        range.setAttribute("x", Math.min(first, last) * width);
        range.setAttribute("width", (Math.abs(last - first) + 1) * width);
      });
      addEventListener("pointerup", () => {
        const [from, to] = [Math.min(first, last), Math.max(first, last)];
        first = -1;
        if (from < 0 || from === to) return;
        const start = new URLSearchParams(bars[from].getAttribute("href"));
        const end = new URLSearchParams(bars[to].getAttribute("href"));
        for (const part of [0, 1]) start.set(`opened_at_to_${part}`, end.get(`opened_at_to_${part}`));
        location.assign(`?${start}`);
      });
    }

    log.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      const row = event.target.closest("[data-entry]");
      const head = event.target.closest("[data-turn-head]");
      const stepButton = event.target.closest("[data-panel-step]");
      if (event.target.closest("[data-panel-close]")) {
        event.preventDefault();
        close();
      } else if (stepButton) move(Number(stepButton.dataset.panelStep));
      else if (head) toggle(head);
      else if (row) {
        event.preventDefault();
        open(row);
      }
    });
    document.addEventListener("keydown", handleKey, true);
    document.addEventListener("bonobot:change", refresh);
    addEventListener("popstate", (event) => {
      const row = rows().find((candidate) => candidate.dataset.entry === event.state?.entry);
      if (row) open(row, false);
      else close(false);
    });
    for (const head of queryAll("[data-turn-head]:has([aria-expanded=true])", container)) {
      unfoldedTurns.add(head.dataset.turnHead);
    }
    queryAll("[data-audit-summary=histogram]", log).forEach(setUpRange);
    queryAll("[data-audit-unfold]", log).forEach(setUpUnfold);
    setUpTail();
  }

  addEventListener("DOMContentLoaded", () => queryAll("[data-audit]").forEach(setUpAudit));
})();
