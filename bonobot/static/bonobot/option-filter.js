// Long lists of checkboxes: a field that filters them, and how many are selected. Their height is limited
// by the style, so that the button of the form stays in reach. Long selects, too: data-searchable-options.
"use strict";

(() => {
  const MIN_OPTIONS = 12;

  function setUpList(list) {
    const options = [...list.children];
    if (options.length < MIN_OPTIONS) return;
    const { searchOptions, selectedOptions, noOptions } = document.getElementById("page").dataset;
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
    const emptyText = document.createElement("p");
    Object.assign(emptyText, { className: "bb-quiet bb-small", textContent: noOptions, hidden: true });
    emptyText.setAttribute("role", "status");
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
      emptyText.hidden = options.some((option) => !option.hidden);
      list.hidden = !emptyText.hidden;
    });
    field.addEventListener("keydown", (event) => {
      if (event.key === "Enter") event.preventDefault(); // instead of submitting the form
    });
    list.addEventListener("change", showCount);
    bar.append(field, count);
    list.before(bar);
    list.after(emptyText);
    list.classList.add("bb-option-list");
    showCount();
  }

  // The field shows what is selected. While it is in use, the select is a list of the matching options below it.
  const MAX_VISIBLE = 8;

  function setUpSelect(select) {
    const options = [...select.options];
    if (options.length < MIN_OPTIONS || select.disabled) return;
    const items = [...select.children];
    const { searchOptions } = document.getElementById("page").dataset;
    const label = select.labels[0];
    const box = select.closest(".relative:has(> select)") ?? select; // of the theme, with an arrow
    const field = document.createElement("input");
    let chosenValue = select.value;
    let isSearching = false;
    field.type = "search";
    field.className = "bb-input bb-option-search";
    field.autocomplete = "off";
    field.required = select.required;
    select.required = false; // browsers can't show a message at a hidden field
    field.placeholder = searchOptions;
    field.setAttribute("aria-label", `${searchOptions}: ${label?.textContent.trim() ?? ""}`);
    field.id = select.id;
    select.id = `${field.id}-options`;
    select.setAttribute("aria-label", label?.textContent.trim() ?? searchOptions);

    const isInGroup = (option, group) => option.dataset.group === group.label;

    // Options can't be hidden in every browser: those that don't match are taken out.
    function show(words) {
      const matches = (option) => words.every((word) => option.text.toLowerCase().includes(word));
      const shownItems = items.filter((item) => {
        if (item.tagName === "OPTION") return matches(item);
        item.replaceChildren(...options.filter((option) => isInGroup(option, item) && matches(option)));
        return item.children.length > 0;
      });
      select.replaceChildren(...shownItems);
      select.value = chosenValue;
      const lineCount = select.options.length + select.querySelectorAll("optgroup").length;
      select.size = isSearching ? Math.max(2, Math.min(MAX_VISIBLE, lineCount)) : 0;
      box.hidden = !isSearching;
    }

    function showChoice() {
      field.value = chosenValue && options.find((option) => option.value === chosenValue)?.text;
    }

    function search(text) {
      isSearching = true;
      show(text.trim().toLowerCase().split(/\s+/).filter(Boolean));
    }

    // Ends the search with what is selected, or with the earlier choice.
    function endSearch() {
      if (!isSearching) return;
      const isChanged = select.selectedIndex >= 0 && select.value !== chosenValue;
      if (isChanged) chosenValue = select.value;
      isSearching = false;
      show([]);
      showChoice();
      if (!isChanged) return;
      for (const name of ["input", "change"]) select.dispatchEvent(new Event(name, { bubbles: true }));
    }

    function handleKey(event) {
      if (event.key === "Escape") endSearch();
      if (event.key === "ArrowDown") {
        if (!isSearching) search("");
        select.focus();
      }
      if (event.key !== "Enter") return;
      event.preventDefault(); // instead of submitting the form
      if (!isSearching) return;
      if (field.value && select.options.length) select.selectedIndex = 0;
      endSearch();
    }

    function leave(event) {
      if (![field, select].includes(event.relatedTarget)) endSearch();
    }

    for (const option of options) option.dataset.group = option.parentElement.label ?? "";
    for (const name of ["input", "change"]) {
      // They change nothing in the form.
      field.addEventListener(name, (event) => event.stopPropagation());
      select.addEventListener(name, () => {
        if (isSearching) return;
        chosenValue = select.value;
        showChoice();
      });
    }
    field.addEventListener("input", () => search(field.value));
    field.addEventListener("keydown", handleKey);
    field.addEventListener("click", () => {
      if (isSearching) return;
      field.select();
      search("");
    });
    select.addEventListener("click", () => {
      endSearch();
      field.focus();
    });
    select.addEventListener("keydown", (event) => {
      if (!["Enter", "Escape"].includes(event.key)) return;
      event.preventDefault();
      endSearch();
      field.focus();
    });
    for (const part of [field, select]) part.addEventListener("blur", leave);
    box.before(field);
    box.hidden = true;
    showChoice();
  }

  document.addEventListener("DOMContentLoaded", () => {
    document.querySelectorAll("select[data-searchable-options]").forEach(setUpSelect);
    const lists = document.querySelectorAll(
      "#content :is([data-option-list], div[id^=id_]:has(> div > label > input[type=checkbox]))",
    );
    lists.forEach(setUpList);
  });
})();
