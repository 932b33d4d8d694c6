// Shows the rows of one state: buttons with data-show-state, rows with data-state.
"use strict";

document.addEventListener("click", (event) => {
  const button = event.target.closest("[data-show-state]");
  if (!button) return;
  const bar = button.closest("[data-row-filter]");
  for (const other of bar.querySelectorAll("[data-show-state]")) {
    other.setAttribute("aria-pressed", String(other === button));
  }
  const state = button.dataset.showState;
  for (const row of bar.parentElement.querySelectorAll("tr[data-state]")) {
    row.hidden = Boolean(state) && row.dataset.state !== state;
  }
});
