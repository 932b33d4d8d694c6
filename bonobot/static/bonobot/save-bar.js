// The bar with the unsaved changes of a form: its changed fields by their labels.
"use strict";

(() => {
  const bar = document.querySelector("[data-save-bar][data-counts-fields]");
  const form = bar?.closest("form");
  if (!form) return;
  const count = bar.querySelector("[data-change-count]");
  // The page of a refused save has the changes as the stored values of its fields.
  const unsavedText = bar.hasAttribute("data-idle") ? "" : count.textContent;

  function isChanged(element) {
    if (!element.name || element.type === "hidden") return false;
    if (element.type === "checkbox" || element.type === "radio") return element.checked !== element.defaultChecked;
    if (element.tagName === "SELECT") {
      const options = [...element.options];
      const stored = options.filter((option) => option.defaultSelected);
      return (stored[0] ?? options[0]) !== element.selectedOptions[0];
    }
    return element.value !== element.defaultValue;
  }

  function getName(element) {
    const text = element.getAttribute("aria-label") ?? element.labels?.[0]?.textContent ?? element.name;
    return text.replace("*", "").trim();
  }

  function showChanges() {
    const names = [...form.elements].filter(isChanged).map(getName);
    const { countOne, countMany } = bar.dataset;
    bar.toggleAttribute("data-idle", names.length === 0 && !unsavedText);
    if (unsavedText) count.textContent = unsavedText;
    else count.textContent = names.length === 1 ? countOne : countMany.replace("{n}", names.length);
    const list = bar.querySelector("[data-change-list]");
    list.textContent = [...new Set(names)].join(" · ");
    list.title = list.textContent;
  }

  for (const type of ["input", "change"]) form.addEventListener(type, showChanges);
  document.addEventListener("keydown", (event) => {
    if (event.key !== "s" || !(event.ctrlKey || event.metaKey) || bar.hasAttribute("data-idle")) return;
    event.preventDefault();
    form.requestSubmit(bar.querySelector("button"));
  });
})();
