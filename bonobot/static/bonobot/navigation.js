// Ways through the admin: the command palette, menus, tabs, and the navigation on phones.
"use strict";

(() => {
  const { fetchFragment, isTyping, parseHtml, queryAll } = bonobotFragments;

  // The command palette: Ctrl+K or Cmd+K, letters, arrows, Enter. Results come from the server.
  const SEARCH_DELAY_MS = 150;
  function setUpPalette(dialog) {
    const input = dialog.querySelector("input");
    const results = dialog.querySelector("[data-palette-found]");
    const options = () => queryAll("[role=option]", results);
    let timer = 0;
    let lastRequest = 0;
    let shownRequest = 0;
    let opensFirst = false; // Enter was pressed before the results of the typed text arrived

    async function fetchResults() {
      clearTimeout(timer);
      timer = 0;
      const number = ++lastRequest;
      const answer = await fetchFragment(
        `${dialog.dataset.palette}?${new URLSearchParams({ q: input.value })}`,
      ).catch(() => null);
      const html = answer?.ok ? await answer.text() : "";
      if (!html || number < shownRequest) return;
      shownRequest = number;
      results.replaceChildren(parseHtml(html));
      selectOption(0);
      if (opensFirst && isCurrent()) openOption(options()[0]);
    }

    function isCurrent() {
      return !timer && shownRequest === lastRequest;
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
      else if (event.key === "Enter" && isCurrent()) openOption(items[at]);
      else if (event.key === "Enter") {
        opensFirst = true;
        fetchResults();
      } else if (event.key === "Escape")
        dialog.close(); // a search field would only be cleared
      else return;
      event.preventDefault();
    }

    // A fragment is the id of a button of this page.
    function openOption(option) {
      const url = option?.dataset.goes;
      if (!url) return;
      if (!url.startsWith("#")) return location.assign(url);
      dialog.close();
      document.querySelector(url)?.click();
    }

    function openPalette() {
      if (dialog.open) return dialog.close();
      input.value = "";
      dialog.showModal();
      fetchResults();
    }

    dialog.addEventListener("close", () => (opensFirst = false));
    input.addEventListener("input", () => {
      opensFirst = false;
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

  // The list of keyboard shortcuts: "?".
  function setUpShortcuts(dialog) {
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.addEventListener("keydown", (event) => {
      if (event.key !== "?" || isTyping(event)) return;
      event.preventDefault();
      dialog.showModal();
    });
  }

  // A menu closes with a click elsewhere, when the focus leaves it, or with Escape.
  function closeMenus(event) {
    for (const menu of queryAll("details.bb-menu[open]")) {
      if (event.type === "keydown" ? event.key !== "Escape" : menu.contains(event.target)) continue;
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
  document.addEventListener("focusin", closeMenus);
  document.addEventListener("keydown", closeMenus);
  document.addEventListener("DOMContentLoaded", () => {
    queryAll("[data-palette]").forEach(setUpPalette);
    queryAll("[data-shortcuts]").forEach(setUpShortcuts);
    // On a phone the current tab may be outside of the visible row.
    const rows = ".bb-tabs, .bb-segments, .bb-settings-navigation";
    for (const tab of queryAll(`:is(${rows}) > [aria-current]`))
      tab.scrollIntoView({ block: "nearest", inline: "center" });
    document.querySelector("[data-bottom]")?.scrollIntoView({ block: "end" });
  });
})();
