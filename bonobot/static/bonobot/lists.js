// Lists of the admin: rows are selected, searched, grouped, and reached with keys.
"use strict";

const bonobotLists = (() => {
  const { fetchFragment, parseHtml, queryAll } = bonobotFragments;

  // Check all visible items; search in a list.
  function checkAll(event) {
    const checkbox = event.target.closest("[data-tick-all]");
    if (!checkbox) return;
    const scope = checkbox.closest("form") ?? document;
    const items = listShownItems(checkbox, scope);
    const isSelection = items.some((item) => !item.checked);
    for (const item of items) {
      item.checked = isSelection;
      // What is selected can be seen.
      if (isSelection) item.closest("details")?.setAttribute("open", "");
    }
    updateCounts(scope);
  }

  // The checkboxes that "Select all" stands for: those of the rows that are shown and can be selected.
  function listShownItems(checkbox, scope) {
    const items = queryAll(`input[name="${checkbox.dataset.tickAll}"]`, scope);
    return items.filter((item) => !item.disabled && isShown(item));
  }

  function isShown(item) {
    return item.closest("[data-find-item]")?.hidden !== true;
  }

  // Show how many are selected; a button that needs a selection is disabled without one.
  function updateCounts(scope) {
    for (const label of queryAll("[data-count-of]", scope)) {
      const selected = queryAll(`input[name="${label.dataset.countOf}"]:checked`, scope);
      const { within } = label.dataset; // count what contains the selected ones, such as servers
      const count = within ? new Set(selected.map((input) => input.closest(within))).size : selected.length;
      label.textContent = count;
      const bar = label.closest("[data-selection-bar]");
      for (const button of bar ? queryAll("button", bar) : [label.closest("button")]) {
        if (button) button.disabled = count === 0;
      }
      bar?.toggleAttribute("data-idle", count === 0);
    }
    for (const checkbox of queryAll("[data-tick-all]", scope)) showPartialSelection(checkbox, scope);
  }

  function showPartialSelection(checkbox, scope) {
    // Also those that can't be selected: they aren't, so not everything is.
    const items = queryAll(`input[name="${checkbox.dataset.tickAll}"]`, scope).filter(isShown);
    const count = items.filter((item) => item.checked).length;
    checkbox.checked = count > 0 && count === items.length;
    checkbox.indeterminate = count > 0 && count < items.length;
  }

  // Django's own lists have a checkbox for all rows, too.
  function showPartialRows() {
    const toggle = document.getElementById("action-toggle");
    if (!toggle) return;
    const rows = queryAll("input.action-select");
    const count = rows.filter((row) => row.checked).length;
    toggle.indeterminate = count > 0 && count < rows.length;
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

  // Of several buttons, Enter in a checkbox would activate the first: the switch or the deletion of another row.
  function ignoreEnter(event) {
    if (event.key !== "Enter" || !event.target.matches("input[type=checkbox]")) return;
    const buttons = [...(event.target.form?.elements ?? [])].filter((field) => field.type === "submit");
    if (buttons.length > 1) event.preventDefault();
  }

  document.addEventListener("click", setAllRules);
  document.addEventListener("click", toggleGroup);
  document.addEventListener("input", filterItems);
  document.addEventListener("keydown", moveInList);
  document.addEventListener("keydown", focusSearch);
  document.addEventListener("keydown", ignoreEnter);
  document.addEventListener("change", setGroupRule);
  document.addEventListener("change", (event) => {
    checkAll(event);
    const form = event.target.closest("form");
    if (form || event.target.form) updateCounts(form ?? document);
    showPartialRows();
  });
  // A browser restores checkboxes when it goes back.
  window.addEventListener("pageshow", () => updateCounts(document));
  document.addEventListener("DOMContentLoaded", () => {
    // "3 of 53 selected": of all pages, as the button that selects them.
    for (const counter of queryAll("[data-result-count] .action-counter")) {
      counter.dataset.actionsIcnt = counter.closest("[data-result-count]").dataset.resultCount;
    }
    // The labels of cards on phones: pseudo-elements have no first letter.
    for (const cell of queryAll("#result_list [data-label]")) {
      const label = cell.dataset.label;
      cell.dataset.label = label.charAt(0).toUpperCase() + label.slice(1);
    }
  });
  return { updateCounts };
})();
