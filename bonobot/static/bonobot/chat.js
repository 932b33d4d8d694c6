// The chat: the newest step stays in reach, versions of messages are switched, what runs now shows how
// long, files are dropped and pasted.
"use strict";

(() => {
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];

  // The button to the newest step shows while that step is out of view, below.
  function setUpJump(conversation) {
    const end = conversation.querySelector("[data-chat-end]");
    const dock = conversation.querySelector("[data-chat-dock]");
    const button = conversation.querySelector("[data-jump]");
    const jump = () => end.scrollIntoView({ block: "end" });
    // A conversation opens at its newest step, unless the URL selects another.
    let isOpening = !location.hash && !new URLSearchParams(location.search).has("after");
    new ResizeObserver(() => {
      end.style.scrollMarginBottom = `${dock.offsetHeight + 8}px`;
      if (isOpening) jump();
      isOpening = false;
    }).observe(dock);
    new IntersectionObserver(([entry]) => {
      button.hidden = entry.isIntersecting || entry.boundingClientRect.top < 0;
    }).observe(end);
    button.addEventListener("click", jump);
  }

  // The rail begins below the header of the page, which stays in sight on wide screens.
  function setUpHead() {
    const head = document.querySelector(".bb-page-head");
    const showHeight = () => {
      const isSticky = getComputedStyle(head).position === "sticky";
      document.documentElement.style.setProperty("--bb-chat-head", isSticky ? `${head.offsetHeight}px` : "0px");
    };
    new ResizeObserver(showHeight).observe(head.parentElement);
    showHeight();
  }

  // The versions of edited messages: the steps of the selected one are shown, the newest first.
  function setUpVersions(list) {
    const selected = new Map();

    function readGroups() {
      const groups = new Map();
      for (const { dataset } of queryAll('[data-versions]:not([data-versions=""])', list)) {
        const starts = dataset.versions.split(",").map(Number);
        groups.set(starts[0], { starts, end: Number(dataset.versionsEnd || Infinity) });
      }
      return [...groups.values()];
    }

    function isShown(seq, { starts, end }) {
      if (seq < starts[0] || seq >= end) return true;
      return starts.findLast((start) => start <= seq) === (selected.get(starts[0]) ?? starts.at(-1));
    }

    function show() {
      const groups = readGroups();
      for (const step of queryAll("[data-seq]", list)) {
        step.hidden = !groups.every((group) => isShown(Number(step.dataset.seq), group));
        for (const control of queryAll("[data-version-switch]", step)) control.hidden = false;
      }
    }

    list.addEventListener("click", (event) => {
      const button = event.target.closest("[data-version-step]");
      if (!button) return;
      const step = button.closest("[data-seq]");
      const starts = step.dataset.versions.split(",").map(Number);
      const next = starts[starts.indexOf(Number(step.dataset.seq)) + Number(button.dataset.versionStep)];
      selected.set(starts[0], next);
      show();
      const shown = list.querySelector(`[data-seq="${next}"]`);
      const sides = queryAll("[data-version-step]", shown);
      (sides.find((side) => !side.disabled && side.dataset.versionStep === button.dataset.versionStep) ??
        sides.find((side) => !side.disabled))?.focus({ preventScroll: true });
      shown.scrollIntoView({ block: "nearest" });
    });
    show();
    new MutationObserver(show).observe(list, { childList: true });
  }

  // The form of a message that is edited: focused when it opens, closed with Escape or its button.
  function setUpEdits(list) {
    const closeEdit = (element) => {
      const edit = element.closest(".bb-edit[open]");
      if (!edit) return;
      edit.open = false;
      edit.querySelector("summary").focus();
    };
    list.addEventListener(
      "toggle",
      (event) => {
        if (!event.target.matches(".bb-edit[open]")) return;
        const field = event.target.querySelector("textarea");
        scrollAboveDock(event.target.querySelector("form"));
        field.focus({ preventScroll: true });
        field.setSelectionRange(field.value.length, field.value.length);
      },
      true,
    );
    list.addEventListener("keydown", (event) => event.key === "Escape" && closeEdit(event.target));
    list.addEventListener("click", (event) => event.target.closest("[data-close-edit]") && closeEdit(event.target));
  }

  // The keys of answers, such as A and D: for the call with the focus, or the only one that is pending.
  const TEXT_FIELDS = "input, textarea, select, [contenteditable], dialog";
  function answerByKey(event) {
    if (event.key === "Escape") return closeAnswer(event.target.closest(".bb-answer[open]"));
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) return sendAnswer(event);
    const isChord = event.ctrlKey || event.metaKey || event.altKey || event.shiftKey;
    if (isChord || event.repeat || event.defaultPrevented || event.target.closest(TEXT_FIELDS)) return;
    const pending = queryAll(".bb-answers");
    const focused = event.target.closest(".bb-call")?.querySelector(".bb-answers");
    const answers = focused ?? (pending.length === 1 && pending[0].offsetParent ? pending[0] : null);
    const button = answers?.querySelector(`[data-key="${CSS.escape(event.key.toLowerCase())}"]`);
    if (!button || button.disabled) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    button.click();
    if (button.matches("summary")) button.parentElement.querySelector("textarea, button").focus();
  }

  // Ctrl+Enter, or Cmd+Enter, in the text of an answer sends it.
  function sendAnswer(event) {
    const button = event.target.closest(".bb-answer")?.querySelector("button[name=answer]");
    if (!button || event.repeat || !event.target.matches("textarea")) return;
    event.preventDefault();
    button.click();
  }

  // Scroll a form that was opened into view, above the field for messages.
  function scrollAboveDock(form) {
    form.style.scrollMarginBottom = `${document.querySelector("[data-chat-dock]")?.offsetHeight ?? 0}px`;
    form.scrollIntoView({ block: "nearest" });
  }

  // The form of an answer opens above the field for messages.
  function showAnswer(event) {
    if (!event.target.matches(".bb-answer[open]")) return;
    const form = event.target.querySelector("form");
    scrollAboveDock(form);
  }

  // Arguments that aren't a JSON object would be lost with the page.
  function checkJson(event) {
    const field = event.target;
    if (!field.matches("[data-json]")) return;
    let value = null;
    try {
      value = JSON.parse(field.value);
    } catch {
      // not JSON
    }
    const isObject = value !== null && typeof value === "object" && !Array.isArray(value);
    field.setCustomValidity(isObject ? "" : field.dataset.json);
  }

  function closeAnswer(answer) {
    if (!answer) return;
    answer.open = false;
    answer.querySelector("summary").focus();
  }

  // How long something runs: <time data-elapsed datetime="…">. The server replaces the element.
  function showElapsedTimes() {
    for (const element of queryAll("[data-elapsed]")) {
      const seconds = Math.max(0, Math.floor((Date.now() - Date.parse(element.getAttribute("datetime"))) / 1000));
      const minutes = Math.floor(seconds / 60);
      const text = minutes ? `${minutes} min ${seconds % 60} s` : `${seconds} s`;
      if (element.textContent !== text) element.textContent = text;
    }
  }

  const KIB = 1024;
  function formatSize(bytes) {
    if (bytes < KIB) return `${bytes} B`;
    if (bytes < KIB * KIB) return `${Math.ceil(bytes / KIB)} KiB`;
    const digits = { minimumFractionDigits: 1, maximumFractionDigits: 1 };
    return `${new Intl.NumberFormat(document.documentElement.lang, digits).format(bytes / KIB / KIB)} MiB`;
  }

  // What is wrong with these files, or "". The server checks them again, by their content.
  function findFileError(input, files) {
    const limits = input.dataset;
    if (files.length > Number(limits.mostFiles)) return limits.tooMany;
    const isBinary = (file) => /^image\/|\/pdf$/.test(file.type);
    const getLimit = (file) => Number(isBinary(file) ? limits.mostBinaryBytes : limits.mostTextBytes);
    const largeFile = files.find((file) => file.size > getLimit(file));
    if (largeFile) return limits.fileTooLarge.replace("#", () => largeFile.name);
    const total = files.reduce((sum, file) => sum + file.size, 0);
    return total > Number(limits.mostBytes) ? limits.tooLarge : "";
  }

  // The files of a message: chosen, dropped on its form, or pasted into its text.
  function setUpFiles(container) {
    const input = container.querySelector("input[type=file]");
    const list = container.querySelector("[data-file-list]");
    const error = container.querySelector("[data-file-error]");
    const form = input.form;
    let files = [];

    function setFiles(nextFiles) {
      const message = findFileError(input, nextFiles);
      if (!message) files = nextFiles;
      const transfer = new DataTransfer();
      for (const file of files) transfer.items.add(file);
      input.files = transfer.files;
      error.textContent = message;
      error.hidden = !message;
      list.replaceChildren(...files.map(buildItem));
    }

    function buildItem(file) {
      const item = container.querySelector("template").content.firstElementChild.cloneNode(true);
      item.querySelector("[data-file-name]").textContent = file.name;
      item.querySelector("[data-file-size]").textContent = formatSize(file.size);
      item.querySelector("[data-drop-file]").addEventListener("click", () => {
        setFiles(files.filter((other) => other !== file));
        form.querySelector("textarea").focus();
      });
      return item;
    }

    function takeFiles(event, transfer) {
      if (!transfer?.files.length) return;
      event.preventDefault();
      setFiles([...files, ...transfer.files]);
    }

    // In the window's capture phase, because forms.js hides the event from the theme's script.
    addEventListener("change", (event) => event.target === input && setFiles([...files, ...input.files]), true);
    // Office programs copy a picture of the text with it; then the text is what was meant.
    form.addEventListener("paste", (event) => {
      const types = event.clipboardData?.types ?? [];
      if (!(types.includes("text/plain") && types.includes("text/html"))) takeFiles(event, event.clipboardData);
    });
    form.addEventListener("dragover", (event) => {
      if (!event.dataTransfer?.types.includes("Files")) return;
      event.preventDefault();
      form.toggleAttribute("data-drops", true);
    });
    for (const name of ["dragleave", "drop"]) {
      form.addEventListener(name, () => form.toggleAttribute("data-drops", false));
    }
    form.addEventListener("drop", (event) => takeFiles(event, event.dataTransfer));
  }

  addEventListener("load", () => {
    queryAll("[data-files]:has(input)").forEach(setUpFiles);
    queryAll("[data-steps]").forEach(setUpVersions);
    queryAll("[data-steps]").forEach(setUpEdits);
    queryAll("[data-live]").forEach(setUpJump);
    if (document.querySelector("[data-chat-dock]")) setUpHead();
    document.addEventListener("keydown", answerByKey, true);
    document.addEventListener("input", checkJson);
    document.addEventListener("toggle", showAnswer, true);
    showElapsedTimes();
    const observer = new MutationObserver(showElapsedTimes);
    for (const dock of queryAll("[data-chat-dock]")) observer.observe(dock, { childList: true });
    setInterval(showElapsedTimes, 1000);
  });
})();
