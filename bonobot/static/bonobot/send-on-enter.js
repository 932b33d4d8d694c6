// Enter sends the message of a <textarea data-send>, Shift+Enter adds a new line.
"use strict";

document.addEventListener("keydown", (event) => {
  const area = event.target.closest?.("textarea[data-send]");
  if (!area || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (area.value.trim()) area.form.requestSubmit();
});
