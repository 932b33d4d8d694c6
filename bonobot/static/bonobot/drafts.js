// Keeps what was typed into a page's forms while the user has to sign in again.
// A tab has one draft, in its own storage: of the page that was left last. Secrets are never kept.
// Pages of signed-in users contain #draft-notice; after a page without it, the draft is restored.
"use strict";

(() => {
  const DRAFT = "bonobot-draft";
  const SIGNED_OUT = "bonobot-signed-out";
  const MAX_AGE_MS = 3_600_000;
  const FORMS = "#main form[method=post]:not(#changelist-form, [data-unguarded], [data-secret])";
  const SKIPPED = "[type=password], [type=hidden], [type=file], [type=submit], [type=button], [data-secret]";

  const isCheckable = (control) => control.matches("[type=checkbox], [type=radio]");

  // The controls of a form that may be kept, by a key: the name, and the position among its namesakes.
  function mapControls(form) {
    const counts = {};
    const controls = new Map();
    for (const control of form.elements) {
      if (!control.name || !control.matches("input, select, textarea") || control.matches(SKIPPED)) continue;
      counts[control.name] = (counts[control.name] ?? 0) + 1;
      controls.set(`${control.name} ${counts[control.name]}`, control);
    }
    return controls;
  }

  function isChanged(control) {
    if (isCheckable(control)) return control.checked !== control.defaultChecked;
    if (!control.matches("select")) return control.value !== control.defaultValue;
    const options = [...control.options];
    if (!control.multiple && !options.some((option) => option.defaultSelected)) return control.selectedIndex > 0;
    return options.some((option) => option.selected !== option.defaultSelected);
  }

  function readState(control) {
    if (isCheckable(control)) return control.checked;
    if (control.matches("select")) return [...control.selectedOptions].map((option) => option.value);
    return control.value;
  }

  function writeState(control, state) {
    if (isCheckable(control)) control.checked = state;
    else if (control.matches("select")) {
      for (const option of control.options) option.selected = state.includes(option.value);
    } else control.value = state;
    for (const type of ["input", "change"]) control.dispatchEvent(new Event(type, { bubbles: true }));
  }

  function readForm(form) {
    const changed = [...mapControls(form)].filter(([, control]) => isChanged(control));
    return changed.map(([key, control]) => [key, readState(control)]);
  }

  function saveDraft(user) {
    const forms = [...document.querySelectorAll(FORMS)].map(readForm);
    if (!forms.some((entries) => entries.length)) return;
    const draft = { user, url: location.pathname + location.search, savedAt: Date.now(), forms };
    try {
      sessionStorage.setItem(DRAFT, JSON.stringify(draft));
    } catch {
      sessionStorage.removeItem(DRAFT); // too large
    }
  }

  // Return the forms in which something was restored.
  function restoreForms(draft) {
    return [...document.querySelectorAll(FORMS)].filter((form, index) => {
      const controls = mapControls(form);
      const entries = (draft.forms[index] ?? []).filter(([key]) => controls.has(key));
      for (const [key, state] of entries) writeState(controls.get(key), state);
      if (entries.length) form.dataset.unsaved = "";
      return entries.length > 0;
    });
  }

  function showNotice(template, forms) {
    const notice = template.content.firstElementChild.cloneNode(true);
    notice.querySelector("[data-draft-discard]").addEventListener("click", () => {
      for (const form of forms) {
        form.reset();
        delete form.dataset.unsaved;
        for (const control of mapControls(form).values()) writeState(control, readState(control));
      }
      notice.remove();
    });
    document.querySelector("main").prepend(notice);
  }

  function useDraft(template) {
    const wasSignedOut = sessionStorage.getItem(SIGNED_OUT);
    const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? "null");
    if (!draft) return;
    const isUsable = draft.user === template.dataset.user && Date.now() - draft.savedAt < MAX_AGE_MS;
    if (wasSignedOut && isUsable && draft.url !== location.pathname + location.search) return; // for later
    sessionStorage.removeItem(DRAFT);
    sessionStorage.removeItem(SIGNED_OUT);
    if (!wasSignedOut || !isUsable) return;
    const forms = restoreForms(draft);
    if (forms.length) showNotice(template, forms);
  }

  document.addEventListener("DOMContentLoaded", () => {
    const template = document.querySelector("#draft-notice");
    if (!template) {
      if (!sessionStorage.getItem(DRAFT)) return;
      sessionStorage.setItem(SIGNED_OUT, "1");
      document.querySelector("[data-draft-kept]")?.toggleAttribute("hidden", false);
      document.querySelector("[data-draft-missing]")?.toggleAttribute("hidden", true);
      return;
    }
    useDraft(template);
    let isSigningOut = false;
    document.querySelector("#logout-form")?.addEventListener("submit", () => {
      isSigningOut = true; // the next person at this browser may be another one
    });
    addEventListener("pagehide", () => {
      if (isSigningOut) sessionStorage.removeItem(DRAFT);
      else saveDraft(template.dataset.user);
    });
  });
})();
