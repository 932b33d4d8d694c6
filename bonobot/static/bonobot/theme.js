// What the theme leaves out: it opens its menus and panels by a click alone, and has the names of
// its icons read out. Here the keyboard reaches all of it, and focus goes in and comes back.
"use strict";

(() => {
  const CLICKED = "[x-on\\:click]:not(a[href], button, input, select, summary, #changelist-filter-close)";
  const FOCUSED = "a[href], button, input, select, textarea, [tabindex='0']";
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const visible = (one) => one.getClientRects().length > 0;
  const within = (panel) =>
    all(FOCUSED, panel).filter((one) => visible(one) && !one.disabled && one.type !== "hidden");

  // What has no element of its own is a button to whoever uses the keyboard or listens.
  function button(one) {
    one.tabIndex = 0;
    one.setAttribute("role", "button");
    const icons = all(".material-symbols-outlined", one);
    for (const icon of icons) icon.setAttribute("aria-hidden", "true");
    const words = icons.reduce((text, icon) => text.replace(icon.textContent, ""), one.textContent);
    if (!words.trim()) one.setAttribute("aria-label", one.closest("[data-more]")?.dataset.more ?? "");
    one.addEventListener("keydown", (event) => {
      if (event.target !== one || !["Enter", " "].includes(event.key)) return;
      event.preventDefault();
      one.click();
    });
  }

  // The panel that a button opens is found by the name of the state that both speak of.
  function opener(one) {
    const state = one.getAttribute("x-on:click").match(/^(\w+) = (?:!\1|true)$/)?.[1];
    const near = one.closest("[x-data]") ?? document;
    const named = `[x-show="${state}"]`;
    const panel = state && (near.querySelector(named) ?? document.querySelector(named));
    if (!panel) return;
    // By the keyboard alone: a pointer is where it has to be.
    let goesIn = false;
    const tell = () => {
      const open = visible(panel);
      one.setAttribute("aria-expanded", String(open));
      if (!open || !goesIn) return;
      goesIn = false;
      within(panel)[0]?.focus();
    };
    new MutationObserver(tell).observe(panel, { attributes: true });
    tell();
    one.addEventListener("click", (event) => {
      goesIn = event.detail === 0 && !visible(panel);
    });
    // Before what is in there, some of which keeps keys to itself.
    const pressed = (event) => {
      if (event.key === "Escape") leave(event, one);
      else if (event.key === "Tab") around(event, within(panel));
    };
    panel.addEventListener("keydown", pressed, true);
  }

  function leave(event, one) {
    event.stopPropagation();
    // Filters have an end of their own, since a click only opens them.
    if (!one.hasAttribute("x-on:keydown.escape.window")) one.click();
    else window.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape" }));
    one.focus();
  }

  function around(event, found) {
    const [first, last] = [found[0], found.at(-1)];
    const [end, other] = event.shiftKey ? [first, last] : [last, first];
    if (document.activeElement !== end) return;
    event.preventDefault();
    other.focus();
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const icon of all("#nav-sidebar a .material-symbols-outlined")) {
      icon.setAttribute("aria-hidden", "true");
      const link = icon.closest("a");
      // A link of nothing but an icon is the one beside its name again.
      if (link.textContent.trim() === icon.textContent.trim()) {
        link.setAttribute("aria-hidden", "true");
        link.tabIndex = -1;
      }
    }
    for (const one of all(CLICKED)) button(one);
    for (const one of all("[x-on\\:click]")) opener(one);
  });
})();
