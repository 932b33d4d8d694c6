// Bonobot's own script for the admin. Every page works without it; it adds live updates and shortcuts.
// Fragments of pages come from the server as HTML, already escaped there: nothing is built from data.
"use strict";

(() => {
  const FRAGMENT = { "Bonobot-Fragment": "1" };
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const readCsrfToken = () => document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

  let isSignedOut = false;

  async function fetchFragment(url, options = {}) {
    const headers = { ...FRAGMENT, ...(options.method === "POST" ? { "X-CSRFToken": readCsrfToken() } : {}) };
    const answer = await fetch(url, { credentials: "same-origin", ...options, headers });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login/")) {
      isSignedOut = true; // drafts.js keeps what was typed
      location.reload();
    }
    return answer;
  }

  function parseHtml(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  // Links that change something are sent as a POST.
  function submitPostLink(event) {
    const link = event.target.closest("a[data-post]");
    if (!link) return;
    event.preventDefault();
    const form = document.createElement("form");
    form.method = "post";
    form.action = link.href;
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name: "csrfmiddlewaretoken", value: readCsrfToken() });
    form.append(input);
    document.body.append(form);
    form.submit();
  }

  // Shows that a form is being processed, and submits it once.
  function markFormBusy(event) {
    const form = event.target.closest("form[data-busy]");
    if (!form || event.defaultPrevented) return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "1";
    const button = event.submitter;
    if (button) button.setAttribute("aria-busy", "true");
    for (const line of queryAll("[data-busy-line]", form)) line.hidden = false;
  }

  // Confirms leaving a page with a changed form that isn't being submitted.
  // A form with errors or `data-unsaved` counts as changed from the start.
  const GUARDED = "#main form[method=post]:not(#changelist-form, [data-unguarded])";
  const FAULTS = ".bb-errors, .errorlist";
  const originalContents = new WeakMap();
  let submittedForm = null;

  function serializeForm(form) {
    const toPlainPair = ([name, value]) => [name, value instanceof File ? value.name : value];
    return JSON.stringify(
      [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken").map(toPlainPair),
    );
  }

  function rememberForm(event) {
    const form = event.target.closest?.(GUARDED);
    if (form && !originalContents.has(form)) originalContents.set(form, serializeForm(form));
  }

  function isChanged(form) {
    if (form.matches("[data-unsaved]") || form.querySelector(FAULTS)) return true;
    return originalContents.has(form) && originalContents.get(form) !== serializeForm(form);
  }

  function confirmLeave(event) {
    if (isSignedOut || !queryAll(GUARDED).some((form) => form !== submittedForm && isChanged(form))) return;
    event.preventDefault();
    // After staying on the page, the form can be submitted again.
    setTimeout(() => {
      if (submittedForm) {
        delete submittedForm.dataset.sent;
        for (const button of queryAll("[aria-busy]", submittedForm)) button.removeAttribute("aria-busy");
      }
      submittedForm = null;
    });
  }

  // Parts of a form that belong to one choice: data-shows="transport_type=http", or "owner_key=agent:*" for
  // those that begin with it. A field hides its row.
  function showMatchingParts(root = document) {
    for (const part of queryAll("[data-shows]", root)) {
      const [name, values] = part.dataset.shows.split("=");
      const form = part.closest("form");
      const selectedValue = new FormData(form).get(name);
      const isShown = values
        .split("|")
        .some((value) =>
          value.endsWith("*") ? String(selectedValue).startsWith(value.slice(0, -1)) : value === String(selectedValue),
        );
      const row = part.matches("input, select, textarea") ? part.closest(".form-row") : part;
      (row ?? part).hidden = !isShown && !row?.querySelector(".errorlist");
    }
  }

  function editPairs(event) {
    const button = event.target.closest("[data-add-pair], [data-drop-pair]");
    if (!button) return;
    const list = button.closest("[data-pairs]");
    if (button.matches("[data-drop-pair]")) button.closest(".bb-pair").remove();
    else {
      const newPair = list.querySelector("template").content.cloneNode(true);
      list.querySelector("[data-pair-list]").append(newPair);
      list.querySelector("[data-pair-list]").lastElementChild.querySelector("input").focus();
    }
  }

  // Check all visible items; search in a list.
  function checkAll(event) {
    const checkbox = event.target.closest("[data-tick-all]");
    if (!checkbox) return;
    const scope = checkbox.closest("form") ?? document;
    for (const item of queryAll(`input[name="${checkbox.dataset.tickAll}"]`, scope)) {
      if (!item.disabled && item.closest("[data-find-item]")?.hidden !== true) item.checked = checkbox.checked;
    }
    updateCounts(scope);
  }

  function updateCounts(scope) {
    for (const label of queryAll("[data-count-of]", scope)) {
      const count = queryAll(`input[name="${label.dataset.countOf}"]:checked`, scope).length;
      label.textContent = count;
      const button = label.closest("button");
      if (button) button.disabled = count === 0;
      label.closest("[data-selection-bar]")?.toggleAttribute("data-idle", count === 0);
    }
  }

  function filterItems(event) {
    const input = event.target.closest("[data-find]");
    if (!input) return;
    const query = queryAll(`[data-find="${input.dataset.find}"]`)
      .map((item) => item.value)
      .join(" ");
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    let foundCount = 0;
    for (const item of queryAll("[data-find-item]", document.getElementById(input.dataset.find))) {
      const text = item.dataset.findItem.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      foundCount += item.hidden ? 0 : 1;
    }
    const container = document.getElementById(input.dataset.find);
    container.toggleAttribute("data-searching", words.length > 0);
    for (const group of queryAll("[data-group]", container)) {
      group.hidden = words.length > 0 && !queryAll("[data-find-item]", group).some((item) => !item.hidden);
    }
    const none = document.getElementById(`${input.dataset.find}-none`);
    if (none) none.hidden = foundCount > 0;
  }

  // Set one rule for all rows that are shown: data-set-all="allow" data-set-in="list".
  function setAllRules(event) {
    const button = event.target.closest("[data-set-all]");
    if (!button) return;
    const rows = queryAll("[data-find-item]", document.getElementById(button.dataset.setIn));
    for (const row of rows.filter((row) => row.offsetParent)) setRule(row, button.dataset.setAll);
    schedulePreview(event);
  }

  function setRule(row, rule) {
    const radio = queryAll("input[type=radio]", row).find((radio) => radio.value === rule);
    if (radio) radio.checked = true;
  }

  // A rule for a group of rows, including those not loaded yet: [data-set-group].
  const NO_RULE = "none";
  function setGroupRule(event) {
    const group = event.target.closest("[data-group]");
    if (!group) return;
    const choice = group.querySelector("[data-set-group]");
    if (!choice) return;
    if (event.target !== choice) {
      // A row's own rule takes precedence over the group's.
      if (event.target.matches("input[type=radio]") && !group.querySelector("[data-rows]")) choice.value = "";
    } else if (choice.value) {
      const rule = choice.value === NO_RULE ? "" : choice.value;
      for (const row of queryAll("[data-find-item]", group)) setRule(row, rule);
    }
  }

  // Groups of rows collapse; missing rows are loaded: data-rows="URL".
  function toggleGroup(event) {
    const button = event.target.closest("[data-folds]");
    const group = (button ?? event.target.closest("[data-more]"))?.closest("[data-group]");
    if (!group) return;
    if (button) {
      const isFolded = group.toggleAttribute("data-folded");
      button.setAttribute("aria-expanded", String(!isFolded));
      if (isFolded || group.querySelector("[data-find-item]")) return;
    }
    loadGroupRows(group);
  }

  async function loadGroupRows(group) {
    const placeholder = group.querySelector("[data-rows]");
    if (!placeholder || placeholder.hasAttribute("aria-busy")) return;
    placeholder.setAttribute("aria-busy", "true");
    const answer = await fetchFragment(placeholder.dataset.rows).catch(() => null);
    placeholder.removeAttribute("aria-busy");
    if (!answer?.ok) return;
    const fragment = parseHtml(await answer.text());
    const rule = group.querySelector("[data-set-group]")?.value;
    const knownNames = new Set(queryAll("input[type=radio]", group).map((radio) => radio.name));
    for (const row of queryAll("[data-find-item]", fragment)) {
      if (knownNames.has(row.querySelector("input[type=radio]").name)) row.remove();
      else if (rule) setRule(row, rule === NO_RULE ? "" : rule);
    }
    const first = fragment.querySelector("input[type=radio]:checked");
    const hadFocus = placeholder.contains(document.activeElement);
    placeholder.replaceWith(fragment);
    if (hadFocus) first?.focus();
  }

  // Preview of a form before it is saved: data-previews="URL" of fragments, on the form or around fields.
  let previewTimer = 0;
  function schedulePreview(event) {
    const source = event.target.closest("[data-previews]");
    const form = source?.closest("form");
    if (!form || event.target.matches("[data-find]")) return;
    clearTimeout(previewTimer);
    previewTimer = setTimeout(async () => {
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetchFragment(source.dataset.previews, { method: "POST", body });
      for (const note of queryAll("[data-preview-note]", form)) note.hidden = !answer.ok;
      if (!answer.ok) return;
      replaceParts(parseHtml(await answer.text()));
    }, 300);
  }

  // Estimate the tokens of a text while it is edited: data-tokens-of="field" (as on the server).
  const BYTES_PER_TOKEN = 4;
  function showTokenEstimate(event) {
    const output =
      event.target.id && document.querySelector(`[data-tokens-of="${CSS.escape(event.target.id)}"]`);
    if (!output) return;
    const bytes = new TextEncoder().encode(event.target.value).length;
    output.textContent = Math.ceil(bytes / BYTES_PER_TOKEN).toLocaleString(document.documentElement.lang);
  }

  async function copyText(event) {
    const button = event.target.closest("[data-copies], [data-copies-code]");
    if (!button) return;
    const { copies } = button.dataset;
    const source = copies ? document.getElementById(copies) : button.previousElementSibling;
    source.select?.();
    if (await writeToClipboard(source.value ?? source.textContent)) showCopied(button);
  }

  async function writeToClipboard(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
    // Pages over plain HTTP have no clipboard; a hidden source can't be selected.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }

  const COPIED_FOR_MS = 2000;

  // The button says so for a moment, in the same place and size.
  function showCopied(button) {
    if (button.dataset.copied) return;
    const before = [...button.childNodes];
    const icon = button.querySelector(".material-symbols-outlined")?.cloneNode();
    const hasText = before.some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (icon) icon.textContent = "check";
    button.style.minWidth = `${button.offsetWidth}px`;
    const announcement = document.getElementById("announcement");
    const { copied } = announcement.dataset;
    button.replaceChildren(...(icon ? [icon] : []), ...(hasText ? [copied] : []));
    announcement.textContent = copied;
    button.dataset.copied = "1";
    setTimeout(() => {
      button.replaceChildren(...before);
      announcement.textContent = "";
      button.style.minWidth = "";
      delete button.dataset.copied;
    }, COPIED_FOR_MS);
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
    const pendingNodes = [...container.childNodes];
    container.removeAttribute("data-connect");
    try {
      const answer = await fetchFragment(url, { method: "POST" });
      container.replaceChildren(replaceParts(parseHtml(await answer.text())));
      container.querySelector("[data-again]")?.addEventListener("click", () => {
        container.replaceChildren(...pendingNodes);
        container.dataset.connect = url;
        connectServers();
      });
    } catch {
      container.textContent = container.dataset.failed ?? "";
    }
    // Checkboxes of a form elsewhere on the page, whose button shows how many are selected.
    if (container.querySelector("input[form]")) updateCounts(document);
    for (const bar of queryAll("progress[data-checks]")) {
      bar.value += 1;
      document.querySelector("[data-check-count]").textContent = bar.value;
    }
    const next = container.querySelector("[data-then]")?.dataset.then;
    if (next) location.assign(next);
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

  // Make invisible characters in the text of models and servers visible (as on the server).
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
  const makeVisible = (text) =>
    text.replace(HIDDEN, (character) =>
      /[\n\t\u200d]/.test(character)
        ? character
        : `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
    );

  // A session: text and progress are shown as they arrive; everything else is rendered by the
  // server and fetched.
  const REFRESH_INTERVAL_MS = 600;
  function followSession(container) {
    const list = container.querySelector("[data-steps]");
    const textsBySeq = new Map(); // by step: the text and the thinking so far
    let isFetching = false;
    let refreshTimer = null;
    let lastFetchedAt = 0;
    let source = null;
    let isWaiting = false;

    function refresh() {
      if (refreshTimer) return;
      refreshTimer = setTimeout(fetchSteps, Math.max(0, lastFetchedAt + REFRESH_INTERVAL_MS - Date.now()));
    }

    async function fetchSteps() {
      if (isFetching) {
        refreshTimer = setTimeout(fetchSteps, REFRESH_INTERVAL_MS);
        return;
      }
      refreshTimer = null;
      isFetching = true;
      lastFetchedAt = Date.now();
      try {
        const answer = await fetchFragment(`${container.dataset.fragment}?after=${container.dataset.after ?? 0}`);
        if (answer.ok) showSteps(parseHtml(await answer.text()));
      } catch {
        refresh();
      } finally {
        isFetching = false;
      }
    }

    const endMark = container.querySelector("[data-chat-end]");
    const isAtEnd = () => Math.abs(endMark.getBoundingClientRect().bottom - innerHeight / 2) < innerHeight / 2 + 160;
    const scrollToEnd = (isNearEnd) => isNearEnd && endMark.scrollIntoView({ block: "end" });

    function showSteps(fragment) {
      const end = isAtEnd();
      for (const step of queryAll("[data-seq]", fragment)) {
        const old = list.querySelector(`[data-seq="${step.dataset.seq}"]`);
        if (!old) list.append(step);
        else if (old.dataset.version !== step.dataset.version) {
          if (old.querySelector("details[open]")) step.querySelector("details")?.setAttribute("open", "");
          old.replaceWith(step);
        }
      }
      removeSettledSteps(Number(fragment.querySelector("[data-part=state]")?.dataset.after ?? 0));
      replaceParts(fragment);
      for (const seq of textsBySeq.keys()) renderText(seq);
      const state = container.querySelector("[data-part=state]");
      container.dataset.after = state?.dataset.after ?? container.dataset.after;
      container.dataset.rests = state?.dataset.rests ?? container.dataset.rests;
      if (state?.dataset.rests === "false") listen();
      else stopListening(state?.dataset.rests === "waiting");
      scrollToEnd(end);
    }

    // A turn that ended without text isn't sent again: remove what is shown of it.
    function removeSettledSteps(lastSettledSeq) {
      for (const step of queryAll('[data-version^="intent"]', list)) {
        if (Number(step.dataset.seq) <= lastSettledSeq) step.remove();
      }
    }

    // Text of an incomplete step, until the server renders the complete one.
    function renderText(seq) {
      const textElement = list.querySelector(`[data-seq="${seq}"] [data-writes]`);
      if (!textElement) return false;
      const { text, thinking } = textsBySeq.get(seq);
      textElement.textContent = makeVisible(text);
      textElement.hidden = !textElement.textContent;
      for (const dots of queryAll(".bb-typing", textElement.parentElement)) dots.hidden = !textElement.hidden;
      const thinkingElement = list.querySelector(`[data-seq="${seq}"] [data-thinks]`);
      if (thinkingElement) {
        thinkingElement.textContent = makeVisible(thinking);
        thinkingElement.parentElement.hidden = !thinking;
      }
      return true;
    }

    // A message that replaces others changes the steps above it.
    function handleMessage(event) {
      if (JSON.parse(event.data).replaces) location.reload();
      else refresh();
    }

    function handleModelStep(event) {
      const step = JSON.parse(event.data);
      if (step.state === "intent") textsBySeq.set(step.seq, { text: step.text ?? "", thinking: step.thinking ?? "" });
      else textsBySeq.delete(step.seq);
      if (step.state !== "intent" || !renderText(step.seq)) refresh();
    }

    function handleDelta(event) {
      const { seq, at, text } = JSON.parse(event.data);
      const texts = textsBySeq.get(seq) ?? { text: "", thinking: "" };
      const characters = [...texts[event.type]];
      if (characters.length < at) return;
      const wasNearEnd = isAtEnd();
      textsBySeq.set(seq, { ...texts, [event.type]: characters.slice(0, at).join("") + text });
      renderText(seq);
      scrollToEnd(wasNearEnd);
    }

    function handleProgress(event) {
      const { seq, done, total, message } = JSON.parse(event.data);
      const progress = list.querySelector(`[data-seq="${seq}"] [data-progress]`);
      if (progress) progress.textContent = `${makeVisible(message)} ${total ? `${done} / ${total}` : done}`.trim();
    }

    // No more events are expected; a pending request may still be answered elsewhere.
    function stopListening(waiting) {
      source?.close();
      source = null;
      isWaiting = waiting;
      announceStream(false);
    }

    // The page has one stream at a time: this one, or that of live.js.
    function announceStream(open) {
      document.dispatchEvent(new CustomEvent("bonobot:session", { detail: { open } }));
    }

    function listen() {
      if (source) return;
      announceStream(true);
      source = new EventSource(`${container.dataset.live}?after=${container.dataset.after ?? 0}`);
      source.addEventListener("message", handleMessage);
      for (const name of ["state", "call", "notice", "end", "rest"]) source.addEventListener(name, refresh);
      source.addEventListener("model", handleModelStep);
      source.addEventListener("text", handleDelta);
      source.addEventListener("thinking", handleDelta);
      source.addEventListener("progress", handleProgress);
    }

    document.addEventListener("bonobot:change", (event) => isWaiting && event.detail.topic === "sessions" && refresh());
    if (container.dataset.rests === "false") listen();
    else stopListening(container.dataset.rests === "waiting");
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

  // The remaining time: <time data-countdown datetime="…">.
  function showCountdown(container) {
    const end = Date.parse(container.getAttribute("datetime"));
    const timer = setInterval(tick, 1000);
    function tick() {
      const secondsLeft = Math.max(0, Math.floor((end - Date.now()) / 1000));
      if (!secondsLeft) clearInterval(timer);
      const parts = [Math.floor(secondsLeft / 3600), Math.floor(secondsLeft / 60) % 60, secondsLeft % 60];
      container.textContent = parts.map((part) => String(part).padStart(2, "0")).join(":");
    }
    tick();
  }

  // The command palette: Ctrl+K or Cmd+K, letters, arrows, Enter. Results come from the server.
  const SEARCH_DELAY_MS = 150;
  function setUpPalette(dialog) {
    const input = dialog.querySelector("input");
    const results = dialog.querySelector("[data-palette-found]");
    const options = () => queryAll("[role=option]", results);
    let timer = 0;
    let lastRequest = 0;

    async function fetchResults() {
      const number = ++lastRequest;
      const answer = await fetchFragment(
        `${dialog.dataset.palette}?${new URLSearchParams({ q: input.value })}`,
      ).catch(() => null);
      if (!answer?.ok || number !== lastRequest) return;
      results.replaceChildren(parseHtml(await answer.text()));
      selectOption(0);
    }

    function selectOption(at) {
      const items = options();
      items.forEach((item, number) => item.setAttribute("aria-selected", String(number === at)));
      if (items[at]) input.setAttribute("aria-activedescendant", items[at].id);
      else input.removeAttribute("aria-activedescendant");
      items[at]?.scrollIntoView({ block: "nearest" });
    }

    function handleKey(event) {
      const items = options();
      const at = items.findIndex((item) => item.getAttribute("aria-selected") === "true");
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && items.length) selectOption((at + step + items.length) % items.length);
      else if (event.key === "Enter") openOption(items[at]);
      else return;
      event.preventDefault();
    }

    function openOption(option) {
      if (option) location.assign(option.dataset.goes);
    }

    function openPalette() {
      if (dialog.open) return dialog.close();
      input.value = "";
      dialog.showModal();
      fetchResults();
    }

    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(fetchResults, SEARCH_DELAY_MS);
    });
    input.addEventListener("keydown", handleKey);
    results.addEventListener("click", (event) => openOption(event.target.closest("[role=option]")));
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.addEventListener("click", (event) => event.target.closest("[data-opens-palette]") && openPalette());
    document.addEventListener("keydown", (event) => {
      if (
        event.key.toLowerCase() !== "k" ||
        !(event.ctrlKey || event.metaKey) ||
        event.shiftKey ||
        event.altKey
      )
        return;
      event.preventDefault();
      openPalette();
    });
  }

  // j and k move down and up in a list, Enter opens the focused row, x checks it.
  const ROWS = "#result_list tbody > tr, .bb-list > li, .bb-table > tbody > tr, details.bb-fold";
  const TEXT_FIELDS = "input, textarea, select, [contenteditable], dialog";
  function moveInList(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(TEXT_FIELDS)) return;
    const rows = queryAll(ROWS, document.querySelector("main") ?? document).filter((row) => row.offsetParent);
    const at = rows.findIndex((row) => row.hasAttribute("data-reached"));
    const step = { j: 1, k: -1 }[event.key];
    if (step && rows.length) {
      const next =
        at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step));
      rows[at]?.removeAttribute("data-reached");
      rows[next].setAttribute("data-reached", "");
      rows[next].scrollIntoView({ block: "nearest" });
      rows[next].querySelector("a[href], summary")?.focus({ preventScroll: true });
    } else if (event.key === "x" && at >= 0) rows[at].querySelector("input[type=checkbox]")?.click();
  }

  // The page's search field has the focus after "/".
  function focusSearch(event) {
    if (event.key !== "/" || event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.closest(`:is(${TEXT_FIELDS}):not([type=radio], [type=checkbox])`)) return;
    const search = queryAll("main .bb-search input").find((input) => input.offsetParent);
    if (!search) return;
    event.preventDefault();
    search.focus();
  }

  // A menu closes with a click elsewhere, or with Escape.
  function closeMenus(event) {
    for (const menu of queryAll("details.bb-menu[open]")) {
      if (event.type === "click" ? menu.contains(event.target) : event.key !== "Escape") continue;
      menu.open = false;
      if (event.type === "keydown") menu.querySelector("summary").focus();
    }
  }

  // On a narrow screen the navigation and the rail of a session are open while the URL has their fragment.
  function closeNavigation(event) {
    if (event.key !== "Escape" || !["#nav-sidebar", "#session-rail"].includes(location.hash)) return;
    const opener = document.querySelector(`a[href="${location.hash}"]`);
    location.hash = "#content";
    opener?.focus();
  }

  document.addEventListener("keydown", closeNavigation);
  document.addEventListener("click", closeMenus);
  document.addEventListener("keydown", closeMenus);
  document.addEventListener("keydown", moveInList);
  document.addEventListener("keydown", focusSearch);
  document.addEventListener("click", (event) => {
    submitPostLink(event);
    editPairs(event);
    copyText(event);
  });
  document.addEventListener("submit", markFormBusy);
  document.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) submittedForm = event.target;
  });
  for (const kind of ["pointerdown", "focusin"]) document.addEventListener(kind, rememberForm, true);
  addEventListener("beforeunload", confirmLeave);
  document.addEventListener("toggle", loadOpenedPart, true);
  document.addEventListener("input", filterItems);
  document.addEventListener("input", schedulePreview);
  document.addEventListener("input", showTokenEstimate);
  document.addEventListener("click", setAllRules);
  document.addEventListener("click", toggleGroup);
  document.addEventListener("change", setGroupRule);
  // The theme's script expects its own field beside each file field, and fails without it.
  document.addEventListener(
    "change",
    (event) => event.target.matches("[data-file]") && event.stopPropagation(),
    true,
  );
  // Checking one of several items selects their choice: data-chooses="mode=selected".
  function selectImpliedChoice(event) {
    const checkbox = event.target.closest("[data-chooses]");
    if (!checkbox || !checkbox.checked) return;
    const [name, value] = checkbox.dataset.chooses.split("=");
    const radio = checkbox.form.querySelector(`input[name="${name}"][value="${value}"]`);
    if (radio) radio.checked = true;
  }

  document.addEventListener("change", (event) => {
    checkAll(event);
    selectImpliedChoice(event);
    const form = event.target.closest("form");
    if (form) {
      showMatchingParts(form);
      updateCounts(form);
    } else if (event.target.form) updateCounts(document);
    if (event.target.matches("[data-submits]")) form.requestSubmit();
  });
  // After other scripts, which select the first field of a form.
  addEventListener("load", () => document.querySelector("[data-error-summary]")?.focus());
  document.addEventListener("DOMContentLoaded", () => {
    showMatchingParts();
    for (const form of queryAll(GUARDED)) originalContents.set(form, serializeForm(form));
    connectServers();
    queryAll("[data-asked]").forEach(loadPart);
    queryAll("[data-parts]").forEach(refreshPart);
    queryAll("[data-palette]").forEach(setUpPalette);
    queryAll("[data-countdown]").forEach(showCountdown);
    // The labels of cards on phones: pseudo-elements have no first letter.
    for (const cell of queryAll("#result_list [data-label]")) {
      const label = cell.dataset.label;
      cell.dataset.label = label.charAt(0).toUpperCase() + label.slice(1);
    }
    for (const container of queryAll("[data-live]")) if (container.dataset.rests !== "true") followSession(container);
    // On a phone the current tab may be outside of the visible row.
    const rows = ".bb-tabs, .bb-segments, .bb-settings-navigation";
    for (const tab of queryAll(`:is(${rows}) > [aria-current]`))
      tab.scrollIntoView({ block: "nearest", inline: "center" });
    document.querySelector("[data-bottom]")?.scrollIntoView({ block: "end" });
  });
})();
