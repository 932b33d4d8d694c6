// Pasted servers: a row can be selected once it has what it needs, so all selected ones are added.
"use strict";

(() => {
  const bar = document.querySelector("[data-import-bar]");
  const form = bar?.closest("form");
  if (!form) return;
  const { dataset } = bar;
  const rows = [...form.querySelectorAll("tr[data-entry]")];
  const STATES = { "": "ready", name: "exists", values: "credential", permission: "permission" };
  const getBox = (row) => row.querySelector("input[name=add]");
  const formatCount = (name, n) =>
    n === 1 ? dataset[`${name}One`] : dataset[`${name}Many`].replace("{n}", n);

  const isFilled = (name) => Boolean(form.elements[`parameter-${name}`]?.value.trim());

  function findNeed(row) {
    if (getBox(row).hasAttribute("data-blocked")) return "blocked";
    if (row.querySelector("[data-new-name]")?.value.trim() === "") return "name";
    if (!row.dataset.needsValues.split(" ").filter(Boolean).every(isFilled)) return "values";
    const isAllowed = row.querySelector("input[name=private]")?.checked;
    return row.hasAttribute("data-needs-permission") && !isAllowed ? "permission" : "";
  }

  function updateRow(row) {
    const box = getBox(row);
    const need = findNeed(row);
    row.dataset.state = STATES[need] ?? row.dataset.state;
    if (box.disabled === Boolean(need)) return need;
    box.disabled = Boolean(need);
    box.checked = !need;
    const ready = row.querySelector("[data-import-ready]");
    if (ready) {
      ready.hidden = Boolean(need);
      row.querySelector("[data-import-state]").hidden = !need;
    }
    return need;
  }

  function countStates() {
    for (const label of form.querySelectorAll("[data-state-count]")) {
      const button = label.closest("button");
      const count = rows.filter((row) => row.dataset.state === button.dataset.showState).length;
      label.textContent = count;
      button.hidden = count === 0 && button.getAttribute("aria-pressed") !== "true";
    }
  }

  function showCounts() {
    const needs = rows.map(updateRow);
    countStates();
    bonobotLists.updateCounts(form);
    const selectedCount = rows.filter((row) => getBox(row).checked).length;
    bar.querySelector("[data-import-selected]").textContent = dataset.selected.replace("{n}", selectedCount);
    const texts = ["values", "permission"].flatMap((name) => {
      const count = needs.filter((need) => need === name).length;
      if (!count) return [];
      const text = document.createElement("span");
      text.textContent = formatCount(name, count);
      return [text];
    });
    bar.querySelector("[data-import-rest]").replaceChildren(...texts);
    const button = bar.querySelector("[data-import-add]");
    button.textContent = selectedCount ? formatCount("add", selectedCount) : dataset.addNone;
    button.disabled = selectedCount === 0;
  }

  // After lists.js, which ticks several boxes at once.
  const schedule = () => setTimeout(showCounts);
  for (const type of ["input", "change"]) form.addEventListener(type, schedule);
  window.addEventListener("pageshow", schedule);
})();
