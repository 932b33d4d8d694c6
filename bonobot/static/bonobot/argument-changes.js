// While the arguments of a pending call are being changed, only the changed call can be approved: with any
// other button, or its key, the call would run with the arguments as they were.
"use strict";

(() => {
  const APPROVALS = "button[name=answer]:is([value=approve], [value=approve_session])";

  const findField = (answers) => answers?.querySelector("textarea[name=arguments]");

  function isChanging(answers) {
    const field = findField(answers);
    return Boolean(field) && (field.value !== field.defaultValue || field.closest("details").open);
  }

  // The buttons that approve the call as it is, and what opens those that ask first.
  function listOtherApprovals(answers) {
    const buttons = [...answers.querySelectorAll(APPROVALS)];
    const openers = buttons.map((button) => button.closest("details")?.querySelector("summary"));
    return [...buttons, ...openers.filter(Boolean)];
  }

  function showState(event) {
    const answers = event.target.closest?.("[data-answers]");
    const field = findField(answers);
    if (!field) return;
    const isInactive = isChanging(answers);
    answers.toggleAttribute("data-changing", isInactive);
    for (const control of listOtherApprovals(answers)) {
      control.dataset.usualTitle ??= control.title;
      control.title = isInactive ? field.dataset.inactive : control.dataset.usualTitle;
      if (isInactive) control.setAttribute("aria-disabled", "true");
      else control.removeAttribute("aria-disabled");
    }
  }

  // The answers whose changes a click would lose. *Approve selected* may include the call that is shown.
  function findAnswersAtRisk(control) {
    if (control?.value === "approve_chosen" && document.querySelector("[data-inbox-item][aria-current] :checked")) {
      return document.querySelector("[data-inbox-details] [data-answers]");
    }
    const answers = control?.closest("[data-answers]");
    return answers && listOtherApprovals(answers).includes(control) ? answers : null;
  }

  // Checked at the click, since browsers restore texts without an event.
  function keepChanges(event) {
    const answers = findAnswersAtRisk(event.target.closest("button, summary"));
    if (!answers || !isChanging(answers)) return;
    event.preventDefault();
    event.stopImmediatePropagation();
    const field = findField(answers);
    field.closest("details").open = true;
    field.focus();
  }

  // Discarded changes are in the field until after the event.
  function closeForm(event) {
    const field = event.target.closest("[data-answers]") ? findField(event.target) : null;
    if (!field) return;
    field.closest("details").open = false;
    field.closest("details").querySelector("summary").focus();
    setTimeout(() => showState({ target: field }));
  }

  document.addEventListener("click", keepChanges, true);
  document.addEventListener("input", showState);
  document.addEventListener("toggle", showState, true);
  document.addEventListener("reset", closeForm);
})();
