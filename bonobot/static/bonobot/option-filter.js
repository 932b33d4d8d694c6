// Long lists of checkboxes: a field that filters them, and how many are selected. Their height is limited
// by the style, so that the button of the form stays in reach.
"use strict";

(() => {
  const MIN_OPTIONS = 12;

  function setUpList(list) {
    const options = [...list.children];
    if (options.length < MIN_OPTIONS) return;
    const { searchOptions, selectedOptions } = document.getElementById("page").dataset;
    const bar = document.createElement("div");
    bar.className = "bb-option-bar";
    const field = document.createElement("input");
    field.type = "search";
    field.className = "bb-input bb-slim";
    field.placeholder = searchOptions;
    field.setAttribute("aria-label", searchOptions);
    const count = document.createElement("span");
    count.className = "bb-quiet bb-small";
    count.setAttribute("role", "status");
    const showCount = () => {
      const selected = list.querySelectorAll("input:checked").length;
      count.textContent = selectedOptions.replace("#", selected);
    };
    field.addEventListener("input", (event) => {
      event.stopPropagation(); // it changes nothing in the form
      const words = field.value.trim().toLowerCase().split(/\s+/);
      for (const option of options) {
        const text = option.textContent.toLowerCase();
        option.hidden = !words.every((word) => text.includes(word));
      }
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault(); // instead of submitting the form
    });
    list.addEventListener("change", showCount);
    bar.append(field, count);
    list.before(bar);
    list.classList.add("bb-option-list");
    showCount();
  }

  document.addEventListener("DOMContentLoaded", () => {
    const lists = document.querySelectorAll(
      "#content :is([data-option-list], div[id^=id_]:has(> div > label > input[type=checkbox]))",
    );
    lists.forEach(setUpList);
  });
})();
