// Keyboard access for the theme, whose menus and panels open by click only: makes them focusable,
// moves the focus into panels and back, and hides the names of icons from screen readers.
"use strict";

(() => {
  const CLICKED = "[x-on\\:click]:not(a[href], button, input, select, summary, #changelist-filter-close)";
  const FOCUSED = "a[href], button, input, select, textarea, [tabindex='0']";
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const isVisible = (element) => element.getClientRects().length > 0;
  const listFocusable = (panel) =>
    queryAll(FOCUSED, panel).filter((element) => isVisible(element) && !element.disabled && element.type !== "hidden");

  // Make an element that reacts to clicks a button for the keyboard and screen readers.
  function makeButton(element) {
    element.tabIndex = 0;
    element.setAttribute("role", "button");
    const icons = queryAll(".material-symbols-outlined", element);
    for (const icon of icons) icon.setAttribute("aria-hidden", "true");
    const words = icons.reduce((text, icon) => text.replace(icon.textContent, ""), element.textContent);
    if (!words.trim()) element.setAttribute("aria-label", element.closest("[data-more]")?.dataset.more ?? "");
    element.addEventListener("keydown", (event) => {
      if (event.target !== element || !["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      element.click();
    });
  }

  // Find the panel that a button opens by the name of their common state.
  function connectPanel(opener) {
    const state = opener.getAttribute("x-on:click").match(/^(\w+) = (?:!\1|true)$/)?.[1];
    const scope = opener.closest("[x-data]") ?? document;
    const selector = `[x-show="${state}"]`;
    const panel = state && (scope.querySelector(selector) ?? document.querySelector(selector));
    if (!panel) return;
    // Only for the keyboard.
    let movesFocus = false;
    const updateExpanded = () => {
      const open = isVisible(panel);
      opener.setAttribute("aria-expanded", String(open));
      if (!open || !movesFocus) return;
      movesFocus = false;
      listFocusable(panel)[0]?.focus();
    };
    new MutationObserver(updateExpanded).observe(panel, { attributes: true });
    updateExpanded();
    opener.addEventListener("click", (event) => {
      movesFocus = event.detail === 0 && !isVisible(panel);
    });
    // In the capture phase: some elements in the panel stop the event.
    const handleKey = (event) => {
      if (event.key === "Escape") closePanel(event, opener);
      else if (event.key === "Tab") wrapFocus(event, listFocusable(panel));
    };
    panel.addEventListener("keydown", handleKey, true);
  }

  function closePanel(event, opener) {
    event.stopPropagation();
    // Filters close by Escape, since a click only opens them.
    if (!opener.hasAttribute("x-on:keydown.escape.window")) opener.click();
    else window.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    opener.focus();
  }

  function wrapFocus(event, items) {
    const [first, last] = [items[0], items.at(-1)];
    const [edge, opposite] = event.shiftKey ? [first, last] : [last, first];
    if (document.activeElement !== edge) return;
    event.preventDefault();
    opposite.focus();
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const icon of queryAll("#nav-sidebar a .material-symbols-outlined")) {
      icon.setAttribute("aria-hidden", "true");
      const link = icon.closest("a");
      // A link with only an icon repeats the named link beside it.
      if (link.textContent.trim() === icon.textContent.trim()) {
        link.setAttribute("aria-hidden", "true");
        link.tabIndex = -1;
      }
    }
    for (const element of queryAll(CLICKED)) makeButton(element);
    for (const element of queryAll("[x-on\\:click]")) connectPanel(element);
  });
})();
