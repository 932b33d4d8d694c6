// Text that is cut off is shown whole in a tooltip while the pointer is over it.
"use strict";

(() => {
  const MAX_LEVELS = 3;

  function isCut(element) {
    return element.scrollWidth > element.clientWidth + 1 && getComputedStyle(element).overflowX === "hidden";
  }

  function readText(element) {
    const copy = element.cloneNode(true);
    for (const part of copy.querySelectorAll(".material-symbols-outlined, .bb-hidden")) part.remove();
    return copy.textContent.trim().replace(/\s+/g, " ");
  }

  document.addEventListener("pointerover", (event) => {
    if (event.target.closest("[title]")) return;
    let element = event.target;
    for (let level = 0; level < MAX_LEVELS && element; level += 1, element = element.parentElement) {
      if (!isCut(element)) continue;
      element.title = readText(element);
      return;
    }
  });
})();
