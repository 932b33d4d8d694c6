// Closes messages: by their button, and those that only say what succeeded after some seconds. They are
// raised above bars, tabs and primary buttons, so that they cover none.
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

  const KEPT_CLEAR = ".bb-save-bar, .bb-actions, .bb-deny-form, [data-chat-dock], .bb-tabs, .bb-primary";
  const GAP_PX = 8;

  const overlaps = (box, other) =>
    box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom;

  function placeToasts() {
    const list = document.querySelector("[data-toasts]");
    if (!list) return;
    list.style.setProperty("--bb-toasts-raise", "0px");
    const start = list.getBoundingClientRect();
    if (!start.height || !list.querySelector(".bb-notice")) return;
    const boxes = [...document.querySelectorAll(KEPT_CLEAR)]
      // A form in a closed menu has a box, too.
      .filter((element) => !list.contains(element) && element.checkVisibility())
      .map((element) => element.getBoundingClientRect())
      .filter((box) => box.height && box.top < innerHeight && box.bottom > 0);
    let raise = 0;
    for (;;) {
      const place = new DOMRect(start.x, start.y - raise, start.width, start.height + GAP_PX);
      const covered = boxes.find((box) => overlaps(place, box));
      if (!covered) break;
      raise += place.bottom - covered.top;
      if (start.y - raise < 0) return; // no place is free
    }
    list.style.setProperty("--bb-toasts-raise", `${raise}px`);
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
    placeToasts();
  });
  document.addEventListener("DOMContentLoaded", () => {
    for (const toast of document.querySelectorAll(TIMED)) if (!hasAction(toast)) closeLater(toast);
    placeToasts();
    // A bar appears with the first change of its form.
    const observer = new ResizeObserver(placeToasts);
    for (const bar of document.querySelectorAll(".bb-save-bar, [data-chat-dock]")) observer.observe(bar);
  });
  // A form opens above its button.
  document.addEventListener("toggle", placeToasts, true);
  addEventListener("load", placeToasts);
  addEventListener("resize", placeToasts);
  addEventListener("scroll", placeToasts, { passive: true });
})();
