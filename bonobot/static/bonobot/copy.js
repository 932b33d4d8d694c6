// Buttons that copy a text: data-copies="id", or data-copies-code for the text before the button.
"use strict";

(() => {
  async function copyText(event) {
    const button = event.target.closest("[data-copies], [data-copies-code]");
    if (!button) return;
    const { copies } = button.dataset;
    const source = copies ? document.getElementById(copies) : button.previousElementSibling;
    source.select?.();
    if (await writeToClipboard(source.value ?? source.textContent)) showCopied(button);
  }

  async function writeToClipboard(text) {
    if (navigator.clipboard) return navigator.clipboard.writeText(text).then(() => true, () => false);
    // Pages over plain HTTP have no clipboard; a hidden source can't be selected.
    const area = document.createElement("textarea");
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand("copy");
    area.remove();
    return isCopied;
  }

  const COPIED_FOR_MS = 2000;

  // The button says so for a moment, in the same place and size.
  function showCopied(button) {
    if (button.dataset.copied) return;
    const before = [...button.childNodes];
    const icon = button.querySelector(".material-symbols-outlined")?.cloneNode();
    const hasText = before.some((node) => node.nodeType === Node.TEXT_NODE && node.data.trim());
    if (icon) icon.textContent = "check";
    button.style.minWidth = `${button.offsetWidth}px`;
    const announcement = document.getElementById("announcement");
    const { copied } = announcement.dataset;
    button.replaceChildren(...(icon ? [icon] : []), ...(hasText ? [copied] : []));
    announcement.textContent = copied;
    button.dataset.copied = "1";
    setTimeout(() => {
      button.replaceChildren(...before);
      announcement.textContent = "";
      button.style.minWidth = "";
      delete button.dataset.copied;
    }, COPIED_FOR_MS);
  }

  document.addEventListener("click", copyText);
})();
