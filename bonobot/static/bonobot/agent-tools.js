// The matrix of an agent's tools: filters, selection, and the bar with the unsaved changes.
// The server decides; this script only shows its answers (see `data-previews` in forms.js).
"use strict";

(() => {
  const form = document.querySelector("form[data-matrix]");
  if (!form) return;
  const bar = document.querySelector("[data-matrix-bar]");
  const saveBar = form.querySelector("[data-save-bar]");
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  // agent-tools-updates.js replaces the rows.
  const listRows = () => queryAll("tr[data-row]", form);
  const listToolRows = () => queryAll("tr[data-find-item]", form);
  const fill = (text, values) => text.replace(/\{(\w+)\}/g, (_all, name) => values[name]);

  // -- Settings --------------------------------------------------------------------------------------------

  const getSwitch = (row) => row.querySelector(".bb-switch3");
  const getChecked = (row) => row.querySelector(".bb-switch3 input:checked");
  const getStored = (row) => row.querySelector(".bb-switch3 input[data-stored]");
  const isChanged = (row) => Boolean(getSwitch(row)) && getChecked(row) !== getStored(row);

  function getWord(input) {
    const word = input.value ? input.closest("label").textContent : saveBar.dataset.inherited;
    return word.trim().toLowerCase();
  }

  function getName(row) {
    return row.querySelector(".bb-switch3").getAttribute("aria-label");
  }

  // What the tools of a server inherit changes with the server's default, unless a rule matches them.
  function updateInherited(group) {
    const head = group.querySelector(".bb-mx-group");
    const checkedInput = head && getSwitch(head) && getChecked(head);
    if (!checkedInput || checkedInput === getStored(head)) {
      for (const row of queryAll("[data-find-item]", group)) restoreInherited(row);
      return;
    }
    const inherited = checkedInput.value || getSwitch(head).dataset.inherited;
    for (const row of queryAll('[data-find-item]:not([data-source="rule"]) .bb-switch3', group)) {
      row.dataset.read ??= row.dataset.inherited;
      row.dataset.inherited = inherited;
    }
  }

  function restoreInherited(row) {
    const control = getSwitch(row);
    if (control?.dataset.read !== undefined) control.dataset.inherited = control.dataset.read;
  }

  function showChanges() {
    const rows = listRows();
    const changed = rows.filter(isChanged);
    for (const row of rows) {
      const was = row.querySelector("[data-was]");
      if (!was || !saveBar) continue;
      was.dataset.text ??= was.textContent;
      row.toggleAttribute("data-changed", isChanged(row));
      was.textContent = isChanged(row)
        ? fill(saveBar.dataset.was, { before: getWord(getStored(row)) })
        : was.dataset.text;
    }
    if (saveBar) showSaveBar(changed);
  }

  // Lists the changes, together for tools with the same change.
  function showSaveBar(changed) {
    saveBar.toggleAttribute("data-idle", changed.length === 0 && !form.hasAttribute("data-unsaved"));
    const count = saveBar.querySelector("[data-change-count]");
    if (count) {
      count.textContent =
        changed.length === 1 ? saveBar.dataset.countOne : fill(saveBar.dataset.countMany, { n: changed.length });
    }
    const namesByChange = new Map();
    for (const row of changed) {
      const key = JSON.stringify([getWord(getStored(row)), getWord(getChecked(row))]);
      namesByChange.set(key, [...(namesByChange.get(key) ?? []), getName(row)]);
    }
    const texts = [...namesByChange].map(([key, names]) => {
      const [before, after] = JSON.parse(key);
      return fill(saveBar.dataset.change, { name: names.join(", "), before, after });
    });
    const list = saveBar.querySelector("[data-change-list]");
    list.textContent = texts.join(" · ");
    list.title = list.textContent;
  }

  function setRows(selectedRows, value) {
    let last = null;
    for (const row of selectedRows) {
      const input = queryAll("input", getSwitch(row) ?? row).find((item) => item.value === value && item.name);
      if (input && !input.disabled) {
        input.checked = true;
        last = input;
      }
    }
    last?.dispatchEvent(new Event("input", { bubbles: true }));
  }

  // -- Filters ---------------------------------------------------------------------------------------------

  let stateFilter = "";
  let onlyChanged = false;
  const search = bar.querySelector("input[type=search]");

  function isFound(row) {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const text = row.dataset.findItem.toLowerCase();
    const labels = row.dataset.labels.split(" ");
    const requiredLabels = queryAll("[data-filter-label]:checked", bar).map((box) => box.dataset.filterLabel);
    return (
      words.every((word) => text.includes(word)) &&
      requiredLabels.every((label) => labels.includes(label))
    );
  }

  function isShown(row) {
    return (
      isFound(row) &&
      (!stateFilter || row.querySelector("[data-state]").dataset.state === stateFilter) &&
      (!onlyChanged || isChanged(row) || row.matches("[data-conflict]"))
    );
  }

  function applyFilters() {
    const toolRows = listToolRows();
    const shown = toolRows.filter((row) => {
      row.hidden = !isShown(row);
      return !row.hidden;
    });
    const isFiltered = shown.length < toolRows.length || onlyChanged;
    form.querySelector("table").toggleAttribute("data-searching", isFiltered);
    for (const group of queryAll("[data-group]", form)) {
      const head = group.querySelector(".bb-mx-group");
      const keepsHead = onlyChanged ? isChanged(head) || head.matches("[data-conflict]") : !isFiltered;
      group.hidden = !keepsHead && !queryAll("[data-find-item]", group).some((row) => !row.hidden);
    }
    document.getElementById("matrix-none").hidden = !isFiltered || shown.length > 0 || onlyChanged;
    showCounts();
    showSelection();
  }

  function clearFilters() {
    search.value = "";
    for (const box of queryAll("[data-filter-label]:checked", bar)) box.checked = false;
    selectState("");
  }

  function selectState(state) {
    stateFilter = state;
    for (const button of queryAll("[data-filter-state]", bar)) {
      button.setAttribute("aria-pressed", String(button.dataset.filterState === state));
    }
    applyFilters();
  }

  // The numbers of the filter count what the search finds, if all rows are loaded; otherwise those of the server stay.
  function showCounts() {
    const loadedRows = queryAll("[data-find-item]", form);
    const total = Number(bar.querySelector('[data-filter-state=""] span').dataset.n);
    if (loadedRows.length !== total) return;
    const states = loadedRows.filter(isFound).map((row) => row.querySelector("[data-state]").dataset.state);
    for (const button of queryAll("[data-filter-state]", bar)) {
      const state = button.dataset.filterState;
      const count = states.filter((item) => !state || item === state).length;
      button.querySelector("span").textContent = count.toLocaleString(document.documentElement.lang);
    }
  }

  // -- Selection -------------------------------------------------------------------------------------------

  const listPicks = (root = form) => queryAll("[data-pick]", root).filter((box) => box.offsetParent);

  function showSelection() {
    const picked = listPicks().filter((box) => box.checked);
    const bulk = bar.querySelector("[data-bulk]");
    if (!bulk) return;
    bulk.hidden = picked.length === 0;
    bulk.querySelector("[data-picked]").textContent = picked.length.toLocaleString(document.documentElement.lang);
    showPartly(form.querySelector("[data-pick-all]"), listPicks());
    for (const group of queryAll("[data-group]", form)) {
      showPartly(group.querySelector("[data-pick-group]"), listPicks(group));
    }
  }

  function showPartly(box, boxes) {
    if (!box) return;
    const count = boxes.filter((item) => item.checked).length;
    box.checked = count > 0 && count === boxes.length;
    box.indeterminate = count > 0 && count < boxes.length;
  }

  function pickRows(event) {
    const box = event.target;
    const scope = box.matches("[data-pick-all]") ? form : box.closest("[data-group]");
    for (const item of listPicks(scope)) item.checked = box.checked;
  }

  // -- Events ----------------------------------------------------------------------------------------------

  form.addEventListener("input", (event) => {
    if (event.target.matches("[data-pick-all], [data-pick-group]")) pickRows(event);
    if (event.target.matches("[data-pick], [data-pick-all], [data-pick-group]")) {
      event.stopPropagation(); // nothing to preview
      return showSelection();
    }
    const group = event.target.closest("[data-group]");
    if (group && event.target.closest(".bb-mx-group")) updateInherited(group);
    showChanges();
  });
  form.addEventListener("click", (event) => {
    if (event.target.closest("[data-clear-filters]")) clearFilters();
    if (event.target.closest("[data-folds]")) setTimeout(showSelection);
    const review = event.target.closest("[data-review-changes]");
    if (!review) return;
    onlyChanged = !onlyChanged;
    review.setAttribute("aria-pressed", String(onlyChanged));
    applyFilters();
  });
  bar.addEventListener("input", applyFilters);
  bar.addEventListener("click", (event) => {
    const filter = event.target.closest("[data-filter-state]");
    const bulk = event.target.closest("[data-bulk-set]");
    if (filter) selectState(filter.dataset.filterState);
    if (!bulk) return;
    const picked = listPicks().filter((box) => box.checked);
    setRows(
      picked.map((box) => box.closest("tr")),
      bulk.dataset.bulkSet,
    );
  });
  bar.querySelector("form").addEventListener("submit", (event) => {
    if (search.matches("[data-find]")) event.preventDefault(); // all rows are here
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "s" && (event.ctrlKey || event.metaKey) && saveBar && !saveBar.hasAttribute("data-idle")) {
      event.preventDefault();
      form.requestSubmit(saveBar.querySelector("[name=do]"));
    }
  });
  form.addEventListener("bonobot:rows", () => {
    for (const group of queryAll("[data-group]", form)) updateInherited(group);
    showChanges();
    applyFilters();
  });
  new MutationObserver(showCounts).observe(form.querySelector("table"), { childList: true, subtree: true });
  showChanges();
  showSelection();
})();
