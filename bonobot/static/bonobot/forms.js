// Forms of the admin: sent once, guarded while they have changes, previewed, with fields that depend on others.
"use strict";

(() => {
  const { fetchFragment, parseHtml, queryAll, readCsrfToken, replaceParts } = bonobotFragments;

  let isSignedOut = false;

  // Links that change something are sent as a POST.
  function submitPostLink(event) {
    const link = event.target.closest("a[data-post]");
    if (!link) return;
    event.preventDefault();
    const form = document.createElement("form");
    form.method = "post";
    form.action = link.href;
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name: "csrfmiddlewaretoken", value: readCsrfToken() });
    form.append(input);
    document.body.append(form);
    form.submit();
  }

  // Shows that a form is being processed, and submits it once.
  function markFormBusy(event) {
    const form = event.target.closest("form[data-busy]");
    if (!form || event.defaultPrevented) return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "1";
    const button = event.submitter;
    if (button) button.setAttribute("aria-busy", "true");
    for (const line of queryAll("[data-busy-line]", form)) line.hidden = false;
  }

  // Confirms leaving a page with a changed form that isn't being submitted.
  // A form with errors or `data-unsaved` counts as changed from the start.
  const GUARDED = "#main form[method=post]:not(#changelist-form, [data-unguarded])";
  const FAULTS = ".bb-errors, .errorlist";
  const originalContents = new WeakMap();
  let submittedForm = null;

  function serializeForm(form) {
    const toPlainPair = ([name, value]) => [name, value instanceof File ? value.name : value];
    return JSON.stringify(
      [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken").map(toPlainPair),
    );
  }

  function rememberForm(event) {
    const form = event.target.closest?.(GUARDED);
    if (form && !originalContents.has(form)) originalContents.set(form, serializeForm(form));
  }

  function isChanged(form) {
    if (form.matches("[data-unsaved]") || form.querySelector(FAULTS)) return true;
    return originalContents.has(form) && originalContents.get(form) !== serializeForm(form);
  }

  function confirmLeave(event) {
    if (isSignedOut || !queryAll(GUARDED).some((form) => form !== submittedForm && isChanged(form))) return;
    event.preventDefault();
    // After staying on the page, the form can be submitted again.
    setTimeout(() => {
      if (submittedForm) {
        delete submittedForm.dataset.sent;
        for (const button of queryAll("[aria-busy]", submittedForm)) button.removeAttribute("aria-busy");
      }
      submittedForm = null;
    });
  }

  // Parts of a form that belong to one choice: data-shows="transport_type=http", or "owner_key=agent:*" for
  // those that begin with it. A field hides its row.
  function showMatchingParts(root = document) {
    for (const part of queryAll("[data-shows]", root)) {
      const [name, values] = part.dataset.shows.split("=");
      const form = part.closest("form");
      const selectedValue = new FormData(form).get(name);
      const isShown = values
        .split("|")
        .some((value) =>
          value.endsWith("*") ? String(selectedValue).startsWith(value.slice(0, -1)) : value === String(selectedValue),
        );
      const row = part.matches("input, select, textarea") ? part.closest(".form-row") : part;
      (row ?? part).hidden = !isShown && !row?.querySelector(".errorlist");
    }
    // Suggestions that depend on a choice: data-lists="kind" uses the list #kind-server if that is selected.
    for (const field of queryAll("[data-lists]", root)) {
      const name = field.dataset.lists;
      field.setAttribute("list", `${name}-${new FormData(field.form).get(name)}`);
    }
  }

  function editPairs(event) {
    const button = event.target.closest("[data-add-pair], [data-drop-pair]");
    if (!button) return;
    const list = button.closest("[data-pairs]");
    if (button.matches("[data-drop-pair]")) button.closest(".bb-pair").remove();
    else {
      const newPair = list.querySelector("template").content.cloneNode(true);
      list.querySelector("[data-pair-list]").append(newPair);
      list.querySelector("[data-pair-list]").lastElementChild.querySelector("input").focus();
    }
  }

  // Preview of a form before it is saved: data-previews="URL" of fragments, on the form or around fields.
  let previewTimer = 0;
  function schedulePreview(event) {
    const source = event.target.closest("[data-previews]");
    const form = source?.closest("form");
    if (!form || event.target.matches("[data-find]")) return;
    clearTimeout(previewTimer);
    previewTimer = setTimeout(async () => {
      const body = new URLSearchParams(new FormData(form));
      const answer = await fetchFragment(source.dataset.previews, { method: "POST", body });
      for (const note of queryAll("[data-preview-note]", form)) note.hidden = !answer.ok;
      if (!answer.ok) return;
      replaceParts(parseHtml(await answer.text()));
    }, 300);
  }

  // Estimate the tokens of a text while it is edited: data-tokens-of="field" (as on the server).
  const BYTES_PER_TOKEN = 4;
  function showTokenEstimate(event) {
    const output =
      event.target.id && document.querySelector(`[data-tokens-of="${CSS.escape(event.target.id)}"]`);
    if (!output) return;
    const bytes = new TextEncoder().encode(event.target.value).length;
    output.textContent = Math.ceil(bytes / BYTES_PER_TOKEN).toLocaleString(document.documentElement.lang);
  }

  // Checking one of several items selects their choice: data-chooses="mode=selected".
  function selectImpliedChoice(event) {
    const checkbox = event.target.closest("[data-chooses]");
    if (!checkbox || !checkbox.checked) return;
    const [name, value] = checkbox.dataset.chooses.split("=");
    const radio = checkbox.form.querySelector(`input[name="${name}"][value="${value}"]`);
    if (radio) radio.checked = true;
  }

  document.addEventListener("bonobot:signed-out", () => {
    isSignedOut = true;
  });
  document.addEventListener("click", (event) => {
    submitPostLink(event);
    editPairs(event);
    // lists.js has set the rules before the preview is fetched.
    if (event.target.closest("[data-set-all]")) schedulePreview(event);
  });
  document.addEventListener("submit", markFormBusy);
  document.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) submittedForm = event.target;
  });
  for (const kind of ["pointerdown", "focusin"]) document.addEventListener(kind, rememberForm, true);
  addEventListener("beforeunload", confirmLeave);
  document.addEventListener("input", schedulePreview);
  document.addEventListener("input", showTokenEstimate);
  // The theme's script expects its own field beside each file field, and fails without it.
  document.addEventListener(
    "change",
    (event) => event.target.matches("[data-file]") && event.stopPropagation(),
    true,
  );
  document.addEventListener("change", (event) => {
    selectImpliedChoice(event);
    const form = event.target.closest("form");
    if (form) showMatchingParts(form);
    if (event.target.matches("[data-submits]")) form.requestSubmit();
  });
  // After other scripts, which select the first field of a form.
  addEventListener("load", () => document.querySelector("[data-error-summary]")?.focus());
  document.addEventListener("DOMContentLoaded", () => {
    showMatchingParts();
    for (const form of queryAll(GUARDED)) originalContents.set(form, serializeForm(form));
  });
})();
