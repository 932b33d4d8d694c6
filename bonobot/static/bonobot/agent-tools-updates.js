// The matrix of an agent's tools while someone else changes rules, definitions, or servers: its rows are replaced,
// or, while rows have marks or are in use, the changes are counted next to a link that replaces them.
"use strict";

(() => {
  const bar = document.querySelector("[data-matrix-bar]");
  if (!bar) return;
  const link = bar.querySelector("[data-matrix-changes]");
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];
  const findMatrix = (root = document) => root.querySelector("form[data-matrix]");
  let latestVersion = bar.dataset.generation;
  let isLoading = false;

  // What a row says about what is saved. A refused save shows decisions that aren't, so they aren't compared.
  const isRefusedSave = Boolean(findMatrix()?.hasAttribute("data-unsaved"));
  function readRow(row) {
    const stored = row.querySelector("[data-stored]");
    const setting = stored ? stored.value : row.querySelector(".bb-mx-setting").textContent;
    const parts = isRefusedSave ? [] : queryAll(".bb-mx-decision, [data-part^=source-], .bb-override", row);
    return [setting, ...parts.map((part) => part.textContent)].join("|").replace(/\s+/g, " ");
  }

  const getKey = (row) => row.querySelector("[data-part^=decision-], [data-part^=counts-]").dataset.part;
  const readRows = (root) => new Map(queryAll("#matrix tr[data-row]", root).map((row) => [getKey(row), readRow(row)]));
  let shownRows = readRows(document);

  function countChanges(freshRows) {
    const keys = new Set([...shownRows.keys(), ...freshRows.keys()]);
    return [...keys].filter((key) => shownRows.get(key) !== freshRows.get(key)).length;
  }

  const listChanged = (form) =>
    queryAll(".bb-switch3 input:checked", form).filter((input) => !input.matches("[data-stored]"));
  const listPicked = (form) => queryAll("[data-pick]:checked", form);

  function isInUse() {
    const form = findMatrix();
    if (document.querySelector("dialog[open], .bb-menu[open]")) return true;
    if (!form) return false;
    return (
      form.hasAttribute("data-unsaved") ||
      form.contains(document.activeElement) ||
      listChanged(form).length + listPicked(form).length > 0
    );
  }

  async function loadPage() {
    const answer = await fetch(location.href, { credentials: "same-origin" }).catch(() => null);
    if (!answer?.ok || answer.redirected) return null;
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  }

  async function checkVersion() {
    if (isLoading || latestVersion === bar.dataset.generation) return;
    isLoading = true;
    const version = latestVersion;
    const fresh = await loadPage();
    isLoading = false;
    if (!fresh) return;
    bar.dataset.generation = version;
    if (isInUse()) showCount(readRows(fresh));
    else replaceRows(fresh);
    checkVersion();
  }

  function showCount(freshRows) {
    const count = countChanges(freshRows);
    const { countOne, countMany } = link.dataset;
    link.textContent = count === 1 ? countOne : countMany.replace("{n}", count);
    link.hidden = count === 0;
  }

  // Unsaved changes and the selection stay, by the names of their fields.
  function replaceRows(fresh) {
    const form = findMatrix();
    const freshForm = findMatrix(fresh);
    if (!form || !freshForm) return location.reload();
    const changed = listChanged(form).map((input) => [input.name, input.value]);
    const picked = new Set(listPicked(form).map((box) => getKey(box.closest("tr"))));
    const folded = new Map(queryAll("[data-group]", form).map((group) => [group.id, group.matches("[data-folded]")]));
    queryAll("[data-group]", form).forEach((group) => group.remove());
    form.querySelector("#matrix").append(...queryAll("[data-group]", freshForm));
    form.querySelector("[name=_version]")?.replaceWith(freshForm.querySelector("[name=_version]") ?? "");
    for (const group of queryAll("[data-group]", form)) {
      if (!folded.has(group.id)) continue;
      group.toggleAttribute("data-folded", folded.get(group.id));
      group.querySelector("[data-folds]")?.setAttribute("aria-expanded", String(!folded.get(group.id)));
    }
    shownRows = readRows(document);
    for (const [name, value] of changed) {
      const input = form.querySelector(`input[name="${CSS.escape(name)}"][value="${value}"]`);
      if (input) input.checked = true;
    }
    for (const box of queryAll("[data-pick]", form)) box.checked = picked.has(getKey(box.closest("tr")));
    replaceOtherParts(fresh);
    link.hidden = true;
    form.dispatchEvent(new CustomEvent("bonobot:rows"));
    // The decisions after the unsaved changes, as previews show them.
    if (changed.length) form.dispatchEvent(new Event("input", { bubbles: true }));
  }

  function replaceOtherParts(fresh) {
    const buttons = queryAll("[data-matrix-bar] [data-filter-state] span", fresh);
    queryAll("[data-filter-state] span", bar).forEach((span, index) => span.replaceWith(buttons[index]));
    for (const form of queryAll("[data-matrix-action]")) form.remove();
    findMatrix().after(...queryAll("[data-matrix-action]", fresh));
  }

  document.addEventListener("bonobot:change", ({ detail }) => {
    if (detail.topic !== "policies") return;
    latestVersion = detail.version;
    checkVersion();
  });
  link.addEventListener("click", async (event) => {
    event.preventDefault();
    const fresh = await loadPage();
    if (fresh) replaceRows(fresh);
    else location.reload();
  });
})();
