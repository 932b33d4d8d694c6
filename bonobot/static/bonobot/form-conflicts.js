// Fields of a form that someone else changed as well: each note is moved below its field, and its button
// switches between the value that was saved and the user's own.
"use strict";

(() => {
  const ROWS = ".bb-field, .form-row, .bb-pair, .bb-mode, td";

  function moveNote(note, form) {
    const name = note.dataset.fieldName;
    const controls = [...form.elements].filter((element) => element.name === name && element.type !== "hidden");
    const row = controls.at(-1)?.closest(ROWS);
    // A page with marks of its own, such as the tools of an agent, shows the saved values itself: only what the
    // person entered is missing.
    const isMarked = row?.closest("[data-conflict]:not([data-has-note])");
    if (isMarked && !note.querySelector("[data-use-saved]")) return note.remove();
    // A note without a row, such as that of a stored secret, stays above the fields.
    if (row) {
      row.dataset.conflict = "";
      row.dataset.hasNote = "";
      row.append(note);
      note.querySelector(".bb-conflict-label").hidden = true;
    }
    note.id = `conflict-${name}`;
    for (const element of controls) {
      element.setAttribute("aria-describedby", `${element.getAttribute("aria-describedby") ?? ""} ${note.id}`.trim());
    }
    showTitles(note, controls);
    if (controls.length) setUpButton(note, controls);
    const fold = row?.closest("details");
    if (fold) fold.open = true;
  }

  const isCheckable = (element) => element.type === "checkbox" || element.type === "radio";

  function readValues(controls) {
    return controls.flatMap((element) => {
      if (isCheckable(element)) return element.checked ? [element.value] : [];
      if (element.tagName === "SELECT") return [...element.selectedOptions].map((option) => option.value);
      return [element.value];
    });
  }

  function writeValues(controls, values) {
    const remaining = [...values];
    for (const element of controls) {
      if (isCheckable(element)) element.checked = values.includes(element.value);
      else if (element.tagName === "SELECT") {
        for (const option of element.options) option.selected = values.includes(option.value);
      } else element.value = remaining.shift() ?? "";
      for (const type of ["input", "change"]) element.dispatchEvent(new Event(type, { bubbles: true }));
    }
  }

  // Choices are named as on the page, not by their values; blank for other values.
  function nameChoices(values, controls) {
    const getTitle = (value) => {
      for (const element of controls) {
        if (isCheckable(element) && element.value === value) return element.labels?.[0]?.textContent.trim();
        const option = [...(element.options ?? [])].find((item) => item.value === value);
        if (option) return option.textContent.trim();
      }
      return "";
    };
    const titles = values.map(getTitle);
    return titles.every(Boolean) ? titles.join(", ") : "";
  }

  function showTitles(note, controls) {
    const text = note.querySelector("[data-saved-text]");
    if (!text || !note.dataset.saved) return;
    text.textContent = nameChoices(JSON.parse(note.dataset.saved), controls) || text.textContent;
  }

  function setUpButton(note, controls) {
    const button = note.querySelector("[data-use-saved]");
    if (!button) return;
    const saved = JSON.parse(note.dataset.saved);
    const own = note.dataset.own ? JSON.parse(note.dataset.own) : readValues(controls);
    const ownTitle = nameChoices(own, controls);
    const labels = [button.textContent, button.dataset.useOwn + (ownTitle && `: ${ownTitle}`)];
    let isSaved = button.hasAttribute("data-is-saved");
    const show = () => {
      button.textContent = labels[Number(isSaved)];
      note.toggleAttribute("data-resolved", isSaved);
    };
    button.hidden = false;
    show();
    button.addEventListener("click", () => {
      writeValues(controls, isSaved ? own : saved);
      isSaved = !isSaved;
      show();
    });
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const notes of document.querySelectorAll("[data-conflicts]")) {
      for (const note of [...notes.children]) moveNote(note, notes.closest("form"));
      notes.hidden = notes.children.length === 0;
    }
    // Not behind the message, which is at the bottom.
    const first = document.querySelector("[data-has-note] > .bb-conflict");
    if (first && first.getBoundingClientRect().bottom > innerHeight / 2) first.scrollIntoView({ block: "center" });
  });
})();
