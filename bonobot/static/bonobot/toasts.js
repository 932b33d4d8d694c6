// Closes messages: by their button or Escape, and those that only say what succeeded after some seconds. At most
// three are visible. They are beside an open side panel, and above bars, tabs and primary buttons, so that they
// cover none.
// Scripts show one with the event "bonobot:toast", whose detail is its text.
"use strict";

(() => {
  const SHOWN_MS = 6000;
  const TIMED = ".bb-notice:is([data-level=success], [data-level=info])";

  // Somebody who reads it, or can act on it (Undo), gets the time they need.
  const isInUse = (toast) => toast.matches(":hover, :focus-within");
  const hasAction = (toast) => toast.querySelector(".bb-notice-text :is(a, button)");

  function closeLater(toast) {
    setTimeout(() => (toast.hidden || isInUse(toast) ? closeLater(toast) : toast.remove()), SHOWN_MS);
  }

  const findList = () => document.querySelector("[data-toasts]");
  const listToasts = () => [...document.querySelectorAll("[data-toasts] > .bb-notice")];

  // The latest ones are visible; earlier ones are counted, and appear when others are closed.
  const MAX_VISIBLE = 3;
  function limitToasts() {
    const toasts = listToasts();
    const hiddenCount = Math.max(0, toasts.length - MAX_VISIBLE);
    toasts.forEach((toast, index) => {
      if (toast.hidden !== index < hiddenCount) toast.hidden = index < hiddenCount;
    });
    const more = document.querySelector("[data-more-toasts]");
    if (!more) return;
    const { countOne, countMany } = more.dataset;
    const text = hiddenCount === 1 ? countOne : countMany.replace("{n}", hiddenCount);
    if (more.dataset.hiddenCount === String(hiddenCount)) return;
    more.dataset.hiddenCount = hiddenCount;
    more.textContent = hiddenCount ? text : "";
    more.hidden = !hiddenCount;
  }

  const KEPT_CLEAR =
    ".bb-save-bar, .bb-actions, .bb-deny-form, [data-chat-dock], .bb-tabs, .bb-primary, " +
    ":is(.bb-sidepanel, .bb-rail) :is(a, button)";
  const GAP_PX = 8;

  const overlaps = (box, other) =>
    box.left < other.right && other.left < box.right && box.top < other.bottom && other.top < box.bottom;

  function setPlace(list, raise, shift) {
    list.style.setProperty("--bb-toasts-raise", `${raise}px`);
    list.style.setProperty("--bb-toasts-shift", `${shift}px`);
  }

  // Return how far messages must be raised to cover none of the boxes; null if no place is free.
  function findRaise(start, boxes, shift) {
    let raise = 0;
    while (start.y - raise >= 0) {
      const place = new DOMRect(start.x - shift, start.y - raise, start.width, start.height + GAP_PX);
      const covered = boxes.find((box) => overlaps(place, box));
      if (!covered) return raise;
      raise += place.bottom - covered.top;
    }
    return null;
  }

  // Beside an open side panel if there is room, else where they are.
  function listShifts(start) {
    const panel = document.querySelector(".bb-sidepanel:not([hidden])")?.getBoundingClientRect();
    if (!panel?.width || panel.left - GAP_PX - start.width < 0) return [0];
    return [Math.max(0, start.right - panel.left + GAP_PX), 0];
  }

  function placeToasts() {
    const list = findList();
    if (!list || !listToasts().length) return;
    limitToasts();
    setPlace(list, 0, 0);
    const start = list.getBoundingClientRect();
    const boxes = [...document.querySelectorAll(KEPT_CLEAR)]
      // A form in a closed menu has a box, too.
      .filter((element) => !list.contains(element) && element.checkVisibility())
      .map((element) => element.getBoundingClientRect())
      .filter((box) => box.height && box.top < innerHeight && box.bottom > 0);
    for (const shift of listShifts(start)) {
      const raise = findRaise(start, boxes, shift);
      if (raise !== null) return setPlace(list, raise, shift);
    }
    setPlace(list, Math.max(0, start.y - GAP_PX), 0); // no place is free: at the top, where few buttons are
  }

  let isPlacing = false;
  function placeToastsSoon() {
    if (isPlacing || !listToasts().length) return;
    isPlacing = true;
    requestAnimationFrame(() => {
      isPlacing = false;
      placeToasts();
    });
  }

  // Screen readers only announce what is added to the page after it was loaded.
  function announceToasts() {
    const toasts = listToasts();
    if (toasts.some((toast) => toast.contains(document.activeElement))) return;
    findList()?.append(...toasts);
  }

  document.addEventListener("click", (event) => {
    event.target.closest?.("[data-close-toast]")?.closest(".bb-notice").remove();
  });
  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") event.target.closest?.("[data-toasts] > .bb-notice")?.remove();
  });
  document.addEventListener("bonobot:toast", (event) => {
    const list = findList();
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
    // Panels open, and messages are closed.
    const changes = { childList: true, subtree: true, attributes: true, attributeFilter: ["hidden"] };
    new MutationObserver(placeToastsSoon).observe(document.body, changes);
  });
  // A form opens above its button.
  document.addEventListener("toggle", placeToasts, true);
  addEventListener("load", () => {
    announceToasts();
    placeToasts();
  });
  addEventListener("resize", placeToasts);
  addEventListener("scroll", placeToasts, { passive: true });
})();
