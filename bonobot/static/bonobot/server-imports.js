// The bar below pasted servers: how many of the selected ones will be added, and what the others need.
"use strict";

(() => {
  const bar = document.querySelector("[data-import-bar]");
  const form = bar?.closest("form");
  if (!form) return;
  const { dataset } = bar;
  const rows = [...form.querySelectorAll("tr[data-entry]")];
  const formatCount = (name, n) =>
    n === 1 ? dataset[`${name}One`] : dataset[`${name}Many`].replace("{n}", n);

  const isFilled = (name) => Boolean(form.elements[`parameter-${name}`]?.value.trim());

  function findNeed(row) {
    if (!row.dataset.needsValues.split(" ").filter(Boolean).every(isFilled)) return "values";
    const isAllowed = row.querySelector("input[name=private]")?.checked;
    return row.hasAttribute("data-needs-permission") && !isAllowed ? "permission" : "add";
  }

  function showCounts() {
    const counts = { add: 0, values: 0, permission: 0 };
    const selected = rows.filter((row) => row.querySelector("input[name=add]").checked);
    for (const row of selected) counts[findNeed(row)] += 1;
    bar.querySelector("[data-import-selected]").textContent = dataset.selected
      .replace("{n}", selected.length)
      .replace("{total}", rows.length);
    const needs = ["values", "permission"].filter((name) => counts[name]).map((name) => {
      const text = document.createElement("span");
      text.textContent = formatCount(name, counts[name]);
      return text;
    });
    bar.querySelector("[data-import-rest]").replaceChildren(...needs);
    const button = bar.querySelector("[data-import-add]");
    button.textContent = formatCount("add", counts.add);
    button.disabled = counts.add === 0;
  }

  // After lists.js, which ticks several boxes at once.
  const schedule = () => setTimeout(showCounts);
  for (const type of ["input", "change"]) form.addEventListener(type, schedule);
  showCounts();
})();
