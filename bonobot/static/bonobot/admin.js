// Bonobot's own script for the admin. Every page works without it; it adds comfort and liveliness.
// Pieces of pages come from the server as HTML, already escaped there: nothing is built from data.
"use strict";

(() => {
  const FRAGMENT = { "Bonobot-Fragment": "1" };
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const token = () => document.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

  async function piece(url, options = {}) {
    const headers = { ...FRAGMENT, ...(options.method === "POST" ? { "X-CSRFToken": token() } : {}) };
    const answer = await fetch(url, { credentials: "same-origin", ...options, headers });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login/")) location.reload();
    return answer;
  }

  function element(html) {
    const holder = document.createElement("template");
    holder.innerHTML = html;
    return holder.content;
  }

  // Links that change something are sent as a POST.
  function posting(event) {
    const link = event.target.closest("a[data-post]");
    if (!link) return;
    event.preventDefault();
    const form = document.createElement("form");
    form.method = "post";
    form.action = link.href;
    const input = document.createElement("input");
    Object.assign(input, { type: "hidden", name: "csrfmiddlewaretoken", value: token() });
    form.append(input);
    document.body.append(form);
    form.submit();
  }

  // A form that waits for a server says so, and is sent once.
  function busy(event) {
    const form = event.target.closest("form[data-busy]");
    if (!form || event.defaultPrevented) return;
    if (form.dataset.sent) return event.preventDefault();
    form.dataset.sent = "1";
    const button = event.submitter;
    if (button) button.setAttribute("aria-busy", "true");
    for (const line of all("[data-busy-line]", form)) line.hidden = false;
  }

  // Whoever leaves a page with a form that they changed is asked first; whoever sends it isn't.
  // What was tried or refused (`data-unsaved`, faults at fields) counts as changed from the start.
  const GUARDED = "#main form[method=post]:not(#changelist-form, [data-unguarded])";
  const FAULTS = ".bb-errors, .errorlist";
  const untouched = new WeakMap();
  let sent = null;

  function content(form) {
    const told = ([name, value]) => [name, value instanceof File ? value.name : value];
    return JSON.stringify(
      [...new FormData(form)].filter(([name]) => name !== "csrfmiddlewaretoken").map(told),
    );
  }

  function remembering(event) {
    const form = event.target.closest?.(GUARDED);
    if (form && !untouched.has(form)) untouched.set(form, content(form));
  }

  function changed(form) {
    if (form.matches("[data-unsaved]") || form.querySelector(FAULTS)) return true;
    return untouched.has(form) && untouched.get(form) !== content(form);
  }

  function leaving(event) {
    if (!all(GUARDED).some((form) => form !== sent && changed(form))) return;
    event.preventDefault();
    // Whoever stays may send what was about to be sent.
    setTimeout(() => {
      if (sent) {
        delete sent.dataset.sent;
        for (const button of all("[aria-busy]", sent)) button.removeAttribute("aria-busy");
      }
      sent = null;
    });
  }

  // Parts of a form that belong to one choice: data-shows="transport_type=http".
  function choosing(root = document) {
    for (const part of all("[data-shows]", root)) {
      const [name, values] = part.dataset.shows.split("=");
      const form = part.closest("form");
      const chosen = new FormData(form).get(name);
      part.hidden = !values.split("|").includes(String(chosen));
    }
  }

  function pairs(event) {
    const button = event.target.closest("[data-add-pair], [data-drop-pair]");
    if (!button) return;
    const list = button.closest("[data-pairs]");
    if (button.matches("[data-drop-pair]")) button.closest(".bb-pair").remove();
    else {
      const added = list.querySelector("template").content.cloneNode(true);
      list.querySelector("[data-pair-list]").append(added);
      list.querySelector("[data-pair-list]").lastElementChild.querySelector("input").focus();
    }
  }

  // Tick all that are shown; find within a list.
  function ticking(event) {
    const box = event.target.closest("[data-tick-all]");
    if (!box) return;
    const scope = box.closest("form") ?? document;
    for (const one of all(`input[name="${box.dataset.tickAll}"]`, scope)) {
      if (!one.disabled && one.closest("[data-find-item]")?.hidden !== true) one.checked = box.checked;
    }
    counting(scope);
  }

  function counting(scope) {
    for (const label of all("[data-count-of]", scope)) {
      const count = all(`input[name="${label.dataset.countOf}"]:checked`, scope).length;
      label.textContent = count;
      const button = label.closest("button");
      if (button) button.disabled = count === 0;
    }
  }

  function finding(event) {
    const input = event.target.closest("[data-find]");
    if (!input) return;
    const said = all(`[data-find="${input.dataset.find}"]`)
      .map((one) => one.value)
      .join(" ");
    const words = said.toLowerCase().split(/\s+/).filter(Boolean);
    let found = 0;
    for (const item of all("[data-find-item]", document.getElementById(input.dataset.find))) {
      const text = item.dataset.findItem.toLowerCase();
      item.hidden = !words.every((word) => text.includes(word));
      found += item.hidden ? 0 : 1;
    }
    const place = document.getElementById(input.dataset.find);
    place.toggleAttribute("data-searching", words.length > 0);
    for (const group of all("[data-group]", place)) {
      group.hidden = words.length > 0 && !all("[data-find-item]", group).some((one) => !one.hidden);
    }
    const none = document.getElementById(`${input.dataset.find}-none`);
    if (none) none.hidden = found > 0;
  }

  // Set one rule for all rows that are shown: data-set-all="allow" data-set-in="list".
  function settingAll(event) {
    const button = event.target.closest("[data-set-all]");
    if (!button) return;
    const rows = all("[data-find-item]", document.getElementById(button.dataset.setIn));
    for (const row of rows.filter((one) => one.offsetParent)) ruling(row, button.dataset.setAll);
    previewing(event);
  }

  function ruling(row, rule) {
    const radio = all("input[type=radio]", row).find((one) => one.value === rule);
    if (radio) radio.checked = true;
  }

  // A rule for a whole group of rows, also for those that aren't here yet: [data-set-group].
  const NO_RULE = "none";
  function settingGroup(event) {
    const group = event.target.closest("[data-group]");
    if (!group) return;
    const choice = group.querySelector("[data-set-group]");
    if (event.target !== choice) {
      // A rule of its own is stronger; where all rows are here, they say it all.
      if (event.target.matches("input[type=radio]") && !group.querySelector("[data-rows]")) choice.value = "";
    } else if (choice.value) {
      const rule = choice.value === NO_RULE ? "" : choice.value;
      for (const row of all("[data-find-item]", group)) ruling(row, rule);
    }
  }

  // Groups of rows fold; rows that aren't here yet are asked for: data-rows="address".
  function opening(event) {
    const button = event.target.closest("[data-folds]");
    const group = (button ?? event.target.closest("[data-more]"))?.closest("[data-group]");
    if (!group) return;
    if (button) {
      const folded = group.toggleAttribute("data-folded");
      button.setAttribute("aria-expanded", String(!folded));
      if (folded || group.querySelector("[data-find-item]")) return;
    }
    fetching(group);
  }

  async function fetching(group) {
    const place = group.querySelector("[data-rows]");
    if (!place || place.hasAttribute("aria-busy")) return;
    place.setAttribute("aria-busy", "true");
    const answer = await piece(place.dataset.rows).catch(() => null);
    place.removeAttribute("aria-busy");
    if (!answer?.ok) return;
    const found = element(await answer.text());
    const rule = group.querySelector("[data-set-group]")?.value;
    const known = new Set(all("input[type=radio]", group).map((one) => one.name));
    for (const row of all("[data-find-item]", found)) {
      if (known.has(row.querySelector("input[type=radio]").name)) row.remove();
      else if (rule) ruling(row, rule === NO_RULE ? "" : rule);
    }
    const first = found.querySelector("input[type=radio]:checked");
    const asked = place.contains(document.activeElement);
    place.replaceWith(found);
    if (asked) first?.focus();
  }

  // What a form would come to, before it is saved: data-previews="address" of pieces.
  let previewed = 0;
  function previewing(event) {
    const form = event.target.closest("form[data-previews]");
    if (!form || event.target.matches("[data-find]")) return;
    clearTimeout(previewed);
    previewed = setTimeout(async () => {
      const body = new URLSearchParams(new FormData(form));
      const answer = await piece(form.dataset.previews, { method: "POST", body });
      for (const note of all("[data-preview-note]", form)) note.hidden = !answer.ok;
      if (!answer.ok) return;
      renewed(element(await answer.text()));
    }, 300);
  }

  // About how many tokens a text takes while it is written: data-tokens-of="field" (as on the server).
  const BYTES_PER_TOKEN = 4;
  function weighing(event) {
    const place =
      event.target.id && document.querySelector(`[data-tokens-of="${CSS.escape(event.target.id)}"]`);
    if (!place) return;
    const bytes = new TextEncoder().encode(event.target.value).length;
    place.textContent = Math.ceil(bytes / BYTES_PER_TOKEN).toLocaleString(document.documentElement.lang);
  }

  async function copying(event) {
    const button = event.target.closest("[data-copies]");
    if (!button) return;
    const source = document.getElementById(button.dataset.copies);
    source.select?.();
    await navigator.clipboard?.writeText(source.value ?? source.textContent);
    button.setAttribute("data-copied", "1");
  }

  // Parts of the page that a piece brings anew: data-part="name". The rest of the piece is returned.
  function renewed(found) {
    for (const part of all("[data-part]", found)) {
      const old = document.querySelector(`[data-part="${CSS.escape(part.dataset.part)}"]`);
      if (old) old.replaceWith(part);
      else part.remove();
    }
    return found;
  }

  // Ask servers one after the other what they offer, and show each answer where it belongs.
  async function connecting() {
    for (const place of all("[data-connect]")) {
      const url = place.dataset.connect;
      const asking = [...place.childNodes];
      place.removeAttribute("data-connect");
      try {
        const answer = await piece(url, { method: "POST" });
        place.replaceChildren(renewed(element(await answer.text())));
        place.querySelector("[data-again]")?.addEventListener("click", () => {
          place.replaceChildren(...asking);
          place.dataset.connect = url;
          connecting();
        });
      } catch {
        place.textContent = place.dataset.failed ?? "";
      }
      // Checkboxes of a form elsewhere on the page, whose button shows how many are selected.
      if (place.querySelector("input[form]")) counting(document);
      for (const bar of all("progress[data-asked]")) bar.value += 1;
      const next = place.querySelector("[data-then]")?.dataset.then;
      if (next) location.assign(next);
    }
  }

  // A part that is asked for when it is opened first: data-piece="address".
  async function unfolding(event) {
    const place = event.target.open ? event.target.querySelector("[data-piece]") : null;
    if (!place) return;
    const url = place.dataset.piece;
    place.removeAttribute("data-piece");
    try {
      const answer = await piece(url);
      place.replaceChildren(element(await answer.text()));
    } catch {
      place.dataset.piece = url;
    }
  }

  // What a model or a server writes, with what can't be seen made visible (as on the server).
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
  const seen = (text) =>
    text.replace(HIDDEN, (one) =>
      /[\n\t\u200d]/.test(one)
        ? one
        : `⟨U+${one.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
    );

  // A conversation: text and progress are shown as they come; for what else is new the server is
  // asked, which renders it.
  const ASKED_EVERY_MS = 600;
  function living(place) {
    const list = place.querySelector("[data-steps]");
    const written = new Map(); // by step: the text and the thinking so far
    let asking = false;
    let again = null;
    let last = 0;
    let source = null;
    let timer = null;

    function refresh() {
      if (again) return;
      again = setTimeout(ask, Math.max(0, last + ASKED_EVERY_MS - Date.now()));
    }

    async function ask() {
      if (asking) {
        again = setTimeout(ask, ASKED_EVERY_MS);
        return;
      }
      again = null;
      asking = true;
      last = Date.now();
      try {
        const answer = await piece(`${place.dataset.fragment}?after=${place.dataset.after ?? 0}`);
        if (answer.ok) show(element(await answer.text()));
      } catch {
        refresh();
      } finally {
        asking = false;
      }
    }

    const nearEnd = () => innerHeight + scrollY > document.body.scrollHeight - 160;
    const follow = (wanted) => wanted && scrollTo({ top: document.body.scrollHeight });

    function show(found) {
      const end = nearEnd();
      for (const step of all("[data-seq]", found)) {
        const old = list.querySelector(`[data-seq="${step.dataset.seq}"]`);
        if (!old) list.append(step);
        else if (old.dataset.version !== step.dataset.version) {
          if (old.querySelector("details[open]")) step.querySelector("details")?.setAttribute("open", "");
          old.replaceWith(step);
        }
      }
      drop(Number(found.querySelector("[data-part=state]")?.dataset.after ?? 0));
      renewed(found);
      for (const seq of written.keys()) write(seq);
      const state = place.querySelector("[data-part=state]");
      place.dataset.after = state?.dataset.after ?? place.dataset.after;
      place.dataset.rests = state?.dataset.rests ?? place.dataset.rests;
      if (state?.dataset.rests === "false") listen();
      else rest(state?.dataset.rests === "waiting");
      follow(end);
    }

    // A turn that has ended without a word is not sent any more: what is shown of it goes.
    function drop(settled) {
      for (const step of all('[data-version^="intent"]', list)) {
        if (Number(step.dataset.seq) <= settled) step.remove();
      }
    }

    // Text of a step that isn't whole yet; it is dropped once the server has rendered the whole.
    function write(seq) {
      const said = list.querySelector(`[data-seq="${seq}"] [data-writes]`);
      if (!said) return false;
      const { text, thinking } = written.get(seq);
      said.textContent = seen(text);
      said.hidden = !said.textContent;
      for (const dots of all(".bb-typing", said.parentElement)) dots.hidden = !said.hidden;
      const thinks = list.querySelector(`[data-seq="${seq}"] [data-thinks]`);
      if (thinks) {
        thinks.textContent = seen(thinking);
        thinks.parentElement.hidden = !thinking;
      }
      return true;
    }

    // A message that takes the place of others changes what stands above it.
    function said(event) {
      if (JSON.parse(event.data).replaces) location.reload();
      else refresh();
    }

    function begun(event) {
      const step = JSON.parse(event.data);
      if (step.state === "intent") written.set(step.seq, { text: step.text ?? "", thinking: step.thinking ?? "" });
      else written.delete(step.seq);
      if (step.state !== "intent" || !write(step.seq)) refresh();
    }

    function grown(event) {
      const { seq, at, text } = JSON.parse(event.data);
      const now = written.get(seq) ?? { text: "", thinking: "" };
      const before = [...now[event.type]];
      if (before.length < at) return;
      const end = nearEnd();
      written.set(seq, { ...now, [event.type]: before.slice(0, at).join("") + text });
      write(seq);
      follow(end);
    }

    function progressed(event) {
      const { seq, done, total, message } = JSON.parse(event.data);
      const shown = list.querySelector(`[data-seq="${seq}"] [data-progress]`);
      if (shown) shown.textContent = `${seen(message)} ${total ? `${done} / ${total}` : done}`.trim();
    }

    // Nothing more comes by itself; where a person is asked, somebody may answer elsewhere.
    function rest(waiting) {
      source?.close();
      source = null;
      clearInterval(timer);
      timer = waiting ? setInterval(refresh, 5000) : null;
    }

    function listen() {
      if (source) return;
      clearInterval(timer);
      source = new EventSource(`${place.dataset.live}?after=${place.dataset.after ?? 0}`);
      source.addEventListener("message", said);
      for (const name of ["state", "call", "notice", "end", "rest"]) source.addEventListener(name, refresh);
      source.addEventListener("model", begun);
      source.addEventListener("text", grown);
      source.addEventListener("thinking", grown);
      source.addEventListener("progress", progressed);
    }

    if (place.dataset.rests === "false") listen();
    else rest(place.dataset.rests === "waiting");
  }

  // Steps that a later message replaced are folded away: data-toggles-replaced shows them.
  function folding(button) {
    const list = button.closest("[data-live]").querySelector("[data-steps]");
    list.toggleAttribute("data-hides-replaced", true);
    button.hidden = false;
    button.addEventListener("click", () => {
      const hides = list.toggleAttribute("data-hides-replaced");
      button.setAttribute("aria-pressed", String(!hides));
    });
  }

  // A part that takes long, asked for when the page is there: data-asked="address".
  async function asking(place) {
    try {
      const answer = await piece(place.dataset.asked);
      place.replaceChildren(element(await answer.text()));
    } catch {
      location.assign("?look=1");
    }
    place.removeAttribute("aria-busy");
  }

  // Parts that change by themselves: data-parts="address", asked while somebody looks, and while
  // the page has what data-while="selector" selects, if that is said.
  function refreshing(place) {
    setInterval(async () => {
      if (document.hidden || (place.dataset.while && !document.querySelector(place.dataset.while))) return;
      const answer = await piece(place.dataset.parts).catch(() => null);
      if (!answer?.ok) return;
      renewed(element(await answer.text()));
    }, 3000);
  }

  // The time that is left: <time data-countdown datetime="…">.
  function remaining(place) {
    const end = Date.parse(place.getAttribute("datetime"));
    const timer = setInterval(tick, 1000);
    function tick() {
      const left = Math.max(0, Math.floor((end - Date.now()) / 1000));
      if (!left) clearInterval(timer);
      const parts = [Math.floor(left / 3600), Math.floor(left / 60) % 60, left % 60];
      place.textContent = parts.map((part) => String(part).padStart(2, "0")).join(":");
    }
    tick();
  }

  function sending(event) {
    const area = event.target.closest("textarea[data-send]");
    if (!area || event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    if (area.value.trim()) area.form.requestSubmit();
  }

  // The palette: Ctrl+K or Cmd+K, letters, arrows, Enter. What fits comes from the server.
  const TYPED_MS = 150;
  function palette(dialog) {
    const input = dialog.querySelector("input");
    const place = dialog.querySelector("[data-palette-found]");
    const options = () => all("[role=option]", place);
    let timer = 0;
    let asked = 0;

    async function ask() {
      const number = ++asked;
      const answer = await piece(
        `${dialog.dataset.palette}?${new URLSearchParams({ q: input.value })}`,
      ).catch(() => null);
      if (!answer?.ok || number !== asked) return;
      place.replaceChildren(element(await answer.text()));
      choose(0);
    }

    function choose(at) {
      const found = options();
      found.forEach((one, number) => one.setAttribute("aria-selected", String(number === at)));
      if (found[at]) input.setAttribute("aria-activedescendant", found[at].id);
      else input.removeAttribute("aria-activedescendant");
      found[at]?.scrollIntoView({ block: "nearest" });
    }

    function pressed(event) {
      const found = options();
      const at = found.findIndex((one) => one.getAttribute("aria-selected") === "true");
      const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
      if (step && found.length) choose((at + step + found.length) % found.length);
      else if (event.key === "Enter") go(found[at]);
      else return;
      event.preventDefault();
    }

    function go(option) {
      if (option) location.assign(option.dataset.goes);
    }

    function open() {
      if (dialog.open) return dialog.close();
      input.value = "";
      dialog.showModal();
      ask();
    }

    input.addEventListener("input", () => {
      clearTimeout(timer);
      timer = setTimeout(ask, TYPED_MS);
    });
    input.addEventListener("keydown", pressed);
    place.addEventListener("click", (event) => go(event.target.closest("[role=option]")));
    dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
    document.addEventListener("click", (event) => event.target.closest("[data-opens-palette]") && open());
    document.addEventListener("keydown", (event) => {
      if (
        event.key.toLowerCase() !== "k" ||
        !(event.ctrlKey || event.metaKey) ||
        event.shiftKey ||
        event.altKey
      )
        return;
      event.preventDefault();
      open();
    });
  }

  // j and k go down and up the rows of a list, Enter opens the one that was reached, x ticks it.
  const ROWS = "#result_list tbody > tr, .bb-list > li, .bb-table > tbody > tr, details.bb-fold";
  const WRITES = "input, textarea, select, [contenteditable], dialog";
  function walking(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest(WRITES)) return;
    const rows = all(ROWS, document.querySelector("main") ?? document).filter((one) => one.offsetParent);
    const at = rows.findIndex((one) => one.hasAttribute("data-reached"));
    const step = { j: 1, k: -1 }[event.key];
    if (step && rows.length) {
      const next =
        at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step));
      rows[at]?.removeAttribute("data-reached");
      rows[next].setAttribute("data-reached", "");
      rows[next].scrollIntoView({ block: "nearest" });
      rows[next].querySelector("a[href], summary")?.focus({ preventScroll: true });
    } else if (event.key === "x" && at >= 0) rows[at].querySelector("input[type=checkbox]")?.click();
  }

  // A menu closes when something else is meant: a click elsewhere, or Escape.
  function closing(event) {
    for (const menu of all("details.bb-menu[open]")) {
      if (event.type === "click" ? menu.contains(event.target) : event.key !== "Escape") continue;
      menu.open = false;
      if (event.type === "keydown") menu.querySelector("summary").focus();
    }
  }

  document.addEventListener("click", closing);
  document.addEventListener("keydown", closing);
  document.addEventListener("keydown", walking);
  document.addEventListener("click", (event) => {
    posting(event);
    pairs(event);
    copying(event);
  });
  document.addEventListener("submit", busy);
  document.addEventListener("submit", (event) => {
    if (!event.defaultPrevented) sent = event.target;
  });
  for (const kind of ["pointerdown", "focusin"]) document.addEventListener(kind, remembering, true);
  addEventListener("beforeunload", leaving);
  document.addEventListener("toggle", unfolding, true);
  document.addEventListener("input", finding);
  document.addEventListener("input", previewing);
  document.addEventListener("input", weighing);
  document.addEventListener("click", settingAll);
  document.addEventListener("click", opening);
  document.addEventListener("change", settingGroup);
  // The theme's own script looks for a field of its making beside each file, and fails without it.
  document.addEventListener(
    "change",
    (event) => event.target.matches("[data-file]") && event.stopPropagation(),
    true,
  );
  document.addEventListener("keydown", sending);
  // Ticking one of several says that the choice is meant: data-chooses="how=chosen".
  function implying(event) {
    const box = event.target.closest("[data-chooses]");
    if (!box || !box.checked) return;
    const [name, value] = box.dataset.chooses.split("=");
    const radio = box.form.querySelector(`input[name="${name}"][value="${value}"]`);
    if (radio) radio.checked = true;
  }

  document.addEventListener("change", (event) => {
    ticking(event);
    implying(event);
    const form = event.target.closest("form");
    if (form) {
      choosing(form);
      counting(form);
    } else if (event.target.form) counting(document);
    if (event.target.matches("[data-submits]")) form.requestSubmit();
  });
  document.addEventListener("DOMContentLoaded", () => {
    choosing();
    for (const form of all(GUARDED)) untouched.set(form, content(form));
    connecting();
    all("[data-asked]").forEach(asking);
    all("[data-parts]").forEach(refreshing);
    all("[data-palette]").forEach(palette);
    all("[data-countdown]").forEach(remaining);
    all("[data-toggles-replaced]").forEach(folding);
    for (const place of all("[data-live]")) if (place.dataset.rests !== "true") living(place);
    // On a phone the tab that is open may lie outside of the row.
    document.querySelector(".bb-tab[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    document.querySelector("[data-bottom]")?.scrollIntoView({ block: "end" });
  });
})();
