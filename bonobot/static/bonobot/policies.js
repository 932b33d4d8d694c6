// The rules of a policy: a dialog for one rule, and the bar with the unsaved changes.
// The server shows the rules and their effect (see `data-previews` in forms.js). What is posted is in
// hidden fields: a text with a rule per line for each effect, and fields for each rule with a condition.
"use strict";

(() => {
  const form = document.querySelector("form[data-policy]");
  if (!form) return;
  const search = form.querySelector("[data-find-rule]");
  const queryAll = (selector, root = form) => [...root.querySelectorAll(selector)];

  // -- Search ----------------------------------------------------------------------------------------------

  function applySearch() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shownCount = 0;
    for (const row of queryAll("[data-rule-row]")) {
      const text = row.dataset.ruleRow.toLowerCase();
      row.hidden = !words.every((word) => text.includes(word));
      if (!row.hidden) shownCount += 1;
    }
    for (const row of queryAll(".bb-rule-none, .bb-rule-table .bb-group")) row.hidden = words.length > 0;
    form.querySelector("[data-no-rules]").hidden = !words.length || shownCount > 0;
  }
  search.addEventListener("input", (event) => {
    event.stopPropagation(); // nothing to preview
    applySearch();
  });
  search.addEventListener("keydown", (event) => {
    if (event.key === "Enter") event.preventDefault();
  });
  applySearch();

  const store = form.querySelector("[data-rule-store]");
  const dialog = document.querySelector("[data-rule-dialog]");
  if (!store || !dialog) return;

  // -- The posted fields -----------------------------------------------------------------------------------

  const getText = (effect) => store.querySelector(`textarea[name="${effect}"]`);
  const readLines = (effect) =>
    getText(effect)
      .value.split("\n")
      .map((line) => line.trim())
      .filter(Boolean);
  const listToolChoices = (tool) => queryAll(`[name="${CSS.escape(`rule-${tool}`)}"]`);

  // A rule of one tool is also a choice in the table of tools, unless its row isn't loaded.
  function setToolRule(tool, effect) {
    const choices = listToolChoices(tool);
    for (const choice of choices) {
      if (choice.type === "radio") choice.checked = choice.value === effect;
      else choice.value = effect;
    }
    if (choices.length || effect) return choices.length > 0;
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name: `rule-${tool}`, value: "" });
    store.append(input);
    return true;
  }

  function removeRule({ effect, tool, when }) {
    if (when) {
      const row = queryAll("[data-stored-rule]", store).find((item) => {
        const [effectInput, toolInput, whenInput] = item.children;
        return effectInput.value === effect && toolInput.value === tool && isSameJson(whenInput.value, when);
      });
      row?.remove();
      return;
    }
    const lines = readLines(effect);
    if (lines.includes(tool)) getText(effect).value = lines.filter((line) => line !== tool).join("\n");
    else setToolRule(tool, "");
  }

  function addRule({ effect, tool, when }) {
    if (when) {
      const row = store.querySelector("template").content.firstElementChild.cloneNode(true);
      [row.children[0].value, row.children[1].value, row.children[2].value] = [effect, tool, when];
      store.append(row);
    } else if (!setToolRule(tool, effect)) {
      getText(effect).value = [...readLines(effect).filter((line) => line !== tool), tool].join("\n");
    }
  }

  function parseJson(text) {
    try {
      return JSON.parse(text);
    } catch {
      return undefined;
    }
  }

  const sortKeys = (_key, value) =>
    value && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([left], [right]) => (left < right ? -1 : 1)))
      : value;
  const isSameJson = (left, right) =>
    JSON.stringify(parseJson(left), sortKeys) === JSON.stringify(parseJson(right), sortKeys);

  const announceChange = () => getText("ask").dispatchEvent(new Event("input", { bubbles: true }));

  // -- The dialog ------------------------------------------------------------------------------------------

  const toolInput = dialog.querySelector("[data-rule-tool]");
  const whenInput = dialog.querySelector("[data-rule-when]");
  const errorText = dialog.querySelector("[data-rule-error]");
  const removeButton = dialog.querySelector("[data-remove-rule]");
  let edited = null;

  function openDialog({ effect, tool = "", when = "" }) {
    edited = tool ? { effect, tool, when } : null;
    for (const element of queryAll("[data-add]", dialog)) {
      element.textContent = edited ? element.dataset.edit : element.dataset.add;
    }
    for (const radio of queryAll("input[type=radio]", dialog)) radio.checked = radio.value === effect;
    toolInput.value = tool;
    whenInput.value = when ? JSON.stringify(JSON.parse(when), null, 2) : "";
    errorText.textContent = "";
    removeButton.hidden = !edited;
    dialog.showModal();
    toolInput.focus();
  }

  function applyDialog(event) {
    const text = whenInput.value.trim();
    const condition = text ? parseJson(text) : {};
    if (!condition || typeof condition !== "object" || Array.isArray(condition)) {
      event.preventDefault();
      errorText.textContent = errorText.dataset.text;
      whenInput.focus();
      return;
    }
    const effect = dialog.querySelector("input[type=radio]:checked").value;
    if (edited) removeRule(edited);
    addRule({ effect, tool: toolInput.value.trim(), when: text ? JSON.stringify(condition) : "" });
    announceChange();
  }

  dialog.querySelector("form").addEventListener("submit", applyDialog);
  dialog.addEventListener("click", (event) => {
    if (event.target.closest("[data-close-rule]")) dialog.close();
    if (!event.target.closest("[data-remove-rule]")) return;
    removeRule(edited);
    dialog.close();
    announceChange();
  });
  form.addEventListener("click", (event) => {
    const edit = event.target.closest("[data-edit-rule]");
    const restore = event.target.closest("[data-restore-rule]");
    if (edit) openDialog(edit.dataset);
    if (!restore) return;
    addRule(restore.dataset);
    announceChange();
  });

  // -- The save bar ----------------------------------------------------------------------------------------

  const saveBar = form.querySelector("[data-save-bar]");
  new MutationObserver(() => {
    const changes = form.querySelector('[data-part="policy-changes"]');
    if (changes) saveBar?.toggleAttribute("data-idle", changes.dataset.count === "0");
    applySearch();
  }).observe(form, { childList: true, subtree: true });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey) || !saveBar || saveBar.hasAttribute("data-idle")) return;
    event.preventDefault();
    form.requestSubmit(saveBar.querySelector("[name=do]"));
  });
})();
