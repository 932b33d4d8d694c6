// Forms in a conversation that are answered where they are: with errors, the form comes back with what was
// entered; otherwise the result takes its place. Without this script, a page shows the same.
"use strict";

(() => {
  const { fetchFragment, parseHtml } = bonobotFragments;

  async function sendForm(event) {
    const form = event.target.closest("form[data-in-place]");
    if (!form) return;
    event.preventDefault();
    if (form.dataset.sent) return;
    form.dataset.sent = "1";
    event.submitter?.setAttribute("aria-busy", "true");
    const body = new URLSearchParams(new FormData(form, event.submitter));
    // Not `form.action`: its buttons may have that name.
    const answer = await fetchFragment(form.getAttribute("action"), { method: "POST", body }).catch(() => null);
    delete form.dataset.sent;
    event.submitter?.removeAttribute("aria-busy");
    if (answer) showAnswer(form, parseHtml(await answer.text()));
  }

  function showAnswer(form, fragment) {
    const next = fragment.querySelector("form");
    const result = fragment.querySelector("[data-done]");
    if (!next && !result) {
      form.querySelector("[data-form-problem]")?.remove();
      const box = document.createElement("div");
      box.dataset.formProblem = "";
      box.append(fragment);
      form.prepend(box);
      return;
    }
    if (result) document.dispatchEvent(new CustomEvent("bonobot:toast", { detail: result.textContent.trim() }));
    const shown = next ?? result;
    form.replaceWith(shown);
    shown.querySelector(".errors :is(input, select, textarea)")?.focus();
  }

  // Before forms.js, which marks forms that leave the page.
  document.addEventListener("submit", sendForm, true);
})();
