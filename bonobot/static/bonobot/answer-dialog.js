// Answers that are confirmed in a dialog of their list: forms with data-confirms. Without this script, the same
// form is a page.
"use strict";

(() => {
  const { fetchFragment, parseHtml } = bonobotFragments;

  function openDialog(fragment) {
    const dialog = document.createElement("dialog");
    dialog.className = "bb bb-rule-dialog bb-answer-dialog";
    dialog.setAttribute("aria-labelledby", "confirm-title");
    dialog.append(fragment);
    dialog.addEventListener("close", () => dialog.remove());
    dialog.addEventListener("click", (event) => {
      if (!event.target.closest("[data-close-dialog]")) return;
      event.preventDefault();
      dialog.close();
    });
    // Ctrl+Enter, or Cmd+Enter, in the message sends it.
    dialog.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || !(event.ctrlKey || event.metaKey) || !event.target.matches("textarea")) return;
      event.preventDefault();
      if (!event.repeat) event.target.form.requestSubmit();
    });
    document.body.append(dialog);
    dialog.showModal();
  }

  // The confirmed form is sent as on the page, which leads back to the list with the result.
  async function confirm(event) {
    const form = event.target.closest("form[data-confirms]");
    if (!form || form.dataset.sent === "page") return;
    event.preventDefault();
    if (form.dataset.sent) return;
    form.dataset.sent = "dialog";
    const { submitter } = event;
    const body = new URLSearchParams(new FormData(form, submitter));
    // Not `form.action`: its buttons have that name.
    const url = form.getAttribute("action") || location.href;
    const answer = await fetchFragment(url, { method: "POST", body }).catch(() => null);
    if (answer?.redirected) return location.assign(answer.url); // nothing to confirm: the list says why
    const fragment = answer?.ok ? parseHtml(await answer.text()) : null;
    delete form.dataset.sent;
    if (fragment?.querySelector("#confirm-title")) return openDialog(fragment);
    form.dataset.sent = "page"; // what the page says about it
    form.requestSubmit(submitter);
  }

  document.addEventListener("submit", confirm);
})();
