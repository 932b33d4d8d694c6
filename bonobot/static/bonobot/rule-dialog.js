// The dialog of a rule: a list of tools to search, and conditions in words that are added to the JSON Schema.
"use strict";

(() => {
  const dialog = document.querySelector("[data-rule-dialog]");
  if (!dialog) return;

  // -- The list of tools -----------------------------------------------------------------------------------

  const MAX_SHOWN = 50;
  const input = dialog.querySelector("[data-rule-tool]");
  const list = document.getElementById("rule-tool-list");
  const choices = JSON.parse(list.dataset.choices);
  let active = -1;

  function buildOption(choice, index) {
    const option = document.createElement("li");
    const name = document.createElement("b");
    const server = document.createElement("span");
    name.textContent = choice.name || list.dataset.all;
    server.textContent = choice.server || list.dataset.builtin;
    Object.assign(option, { id: `rule-tool-${index}`, role: "option", title: choice.rule });
    option.dataset.rule = choice.rule;
    option.append(name, server);
    return option;
  }

  function show() {
    const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = choices.filter((choice) => {
      const text = `${choice.rule} ${choice.name} ${choice.server}`.toLowerCase();
      return words.every((word) => text.includes(word));
    });
    list.replaceChildren(...matches.slice(0, MAX_SHOWN).map(buildOption));
    toggle(matches.length > 0);
    select(-1);
  }

  function toggle(isShown) {
    list.hidden = !isShown;
    input.setAttribute("aria-expanded", String(isShown));
  }

  function select(index) {
    list.children[active]?.removeAttribute("aria-selected");
    active = index;
    const option = list.children[active];
    option?.setAttribute("aria-selected", "true");
    option?.scrollIntoView({ block: "nearest" });
    if (option) input.setAttribute("aria-activedescendant", option.id);
    else input.removeAttribute("aria-activedescendant");
  }

  function choose(option) {
    input.value = option.dataset.rule;
    toggle(false);
  }

  function handleKey(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (step && list.hidden) show();
    else if (step) select((active + step + list.children.length) % list.children.length);
    else if (event.key === "Enter" && !list.hidden && active >= 0) choose(list.children[active]);
    else if (event.key === "Escape" && !list.hidden) toggle(false);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  input.addEventListener("input", show);
  input.addEventListener("click", () => list.hidden && show());
  input.addEventListener("blur", () => toggle(false));
  input.addEventListener("keydown", handleKey);
  list.addEventListener("pointerdown", (event) => {
    event.preventDefault(); // the field keeps the focus
    const option = event.target.closest("[role=option]");
    if (option && event.button === 0) choose(option);
  });

  // -- Conditions in words ---------------------------------------------------------------------------------

  const row = dialog.querySelector("[data-condition-words]");
  const [argument, value] = ["argument", "value"].map((name) => row.querySelector(`[data-condition-${name}]`));
  const comparison = row.querySelector("select");
  const schemaField = dialog.querySelector("[data-rule-when]");

  function parseJson(text, fallback) {
    try {
      return JSON.parse(text);
    } catch {
      return fallback;
    }
  }

  // The compared value: a number for bounds, a text for patterns, else JSON or a text; undefined if it isn't valid.
  function readValue() {
    const text = value.value.trim();
    if (!text) return undefined;
    if (comparison.value === "pattern") return text;
    const parsed = parseJson(text, text);
    return comparison.value === "const" || typeof parsed === "number" ? parsed : undefined;
  }

  function addCondition() {
    const name = argument.value.trim();
    const keyword = comparison.value;
    const compared = keyword ? readValue() : null;
    if (!name || compared === undefined) {
      (name ? value : argument).focus();
      return false;
    }
    const schema = parseJson(schemaField.value.trim() || "{}", {});
    schema.properties = { ...schema.properties };
    schema.properties[name] = { ...schema.properties[name], ...(keyword ? { [keyword]: compared } : {}) };
    schema.required = [...new Set([...(schema.required ?? []), name])];
    schemaField.value = JSON.stringify(schema, null, 2);
    argument.value = value.value = "";
    argument.focus();
    return true;
  }

  // "Apply" includes a condition that was entered, but not added. Before the listener of policies.js.
  function applyCondition(event) {
    if (!(argument.value.trim() || value.value.trim()) || addCondition()) return;
    event.preventDefault();
    event.stopPropagation();
  }

  comparison.addEventListener("change", () => (value.hidden = !comparison.value));
  row.querySelector("[data-add-condition]").addEventListener("click", addCondition);
  dialog.addEventListener("submit", applyCondition, true);
  row.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.target.matches("button")) return;
    event.preventDefault(); // instead of applying the rule without it
    addCondition();
  });
})();
