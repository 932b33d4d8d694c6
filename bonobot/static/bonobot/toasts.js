// Closes messages: by their button, and those that only say what succeeded after some seconds.
// Scripts show one with the event "bonobot:toast", whose detail is its text.
"use strict";

(() => {
  const SHOWN_MS = 6000;
  const TIMED = ".bb-notice:is([data-level=success], [data-level=info])";

  // Somebody who reads it, or can act on it (Undo), gets the time they need.
  const isInUse = (toast) => toast.matches(":hover, :focus-within");
  const hasAction = (toast) => toast.querySelector(".bb-notice-text :is(a, button)");

  function closeLater(toast) {
    setTimeout(() => (isInUse(toast) ? closeLater(toast) : toast.remove()), SHOWN_MS);
  }

  document.addEventListener("click", (event) => {
    event.target.closest?.("[data-close-toast]")?.closest(".bb-notice").remove();
  });
  document.addEventListener("bonobot:toast", (event) => {
    const list = document.querySelector("[data-toasts]");
    const toast = list.querySelector("template").content.firstElementChild.cloneNode(true);
    toast.querySelector(".bb-notice-text").textContent = event.detail;
    list.append(toast);
    closeLater(toast);
  });
  document.addEventListener("DOMContentLoaded", () => {
    for (const toast of document.querySelectorAll(TIMED)) if (!hasAction(toast)) closeLater(toast);
  });
})();
