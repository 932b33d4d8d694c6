// Lists of records with details beside them: the inbox of approvals and the audit log. Without this
// script, their links open pages and their forms are sent as usual.
"use strict";

(() => {
  const FRAGMENT = { "Bonobot-Fragment": "1" };
  const TEXT_FIELDS = "input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]";
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];

  function parseHtml(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  async function fetchFragment(url, options = {}) {
    const answer = await fetch(url, { credentials: "same-origin", ...options, headers: FRAGMENT });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login/")) location.reload();
    return answer;
  }

  const isTyping = (event) =>
    event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.target.closest(TEXT_FIELDS);

  function setUpInbox(inbox) {
    const details = inbox.querySelector("[data-inbox-details]");
    const form = inbox.querySelector("[data-inbox-list]");
    const items = () => queryAll("[data-inbox-item]", inbox);
    const current = () => inbox.querySelector("[data-inbox-item][aria-current]");
    const link = (item) => item?.querySelector("a[href]");
    let lastRequest = 0;

    async function select(item, { opens = true, push = true } = {}) {
      if (!item) return;
      current()?.removeAttribute("aria-current");
      item.setAttribute("aria-current", "true");
      item.scrollIntoView({ block: "nearest" });
      const number = ++lastRequest;
      const answer = await fetchFragment(link(item).href).catch(() => null);
      if (number !== lastRequest) return;
      if (!answer?.ok) return location.assign(link(item).href);
      details.replaceChildren(parseHtml(await answer.text()));
      inbox.toggleAttribute("data-opened", opens);
      if (push) history.pushState({ inbox: item.dataset.inboxItem }, "", link(item).href);
    }

    function move(step) {
      const all = items();
      const at = all.indexOf(current());
      select(all[Math.min(all.length - 1, Math.max(0, at + step))], { opens: inbox.hasAttribute("data-opened") });
    }

    // The answered call leaves the list; the next one takes its place in the details.
    function settle(item, text) {
      const all = items();
      const next = all[all.indexOf(item) + 1] ?? all[all.indexOf(item) - 1];
      announce(text);
      if (!next) return;
      item.remove();
      updateSelection();
      select(next, { opens: false });
    }

    function announce(text) {
      let status = inbox.querySelector("[data-inbox-status]");
      if (!status) {
        status = document.createElement("p");
        Object.assign(status, { className: "bb-toast", role: "status" });
        status.dataset.inboxStatus = "";
        inbox.append(status);
      }
      status.textContent = text;
      status.classList.remove("bb-shown");
      requestAnimationFrame(() => status.classList.add("bb-shown"));
    }

    async function sendAnswer(event) {
      const answerForm = event.target.closest("[data-inbox-answer]");
      if (!answerForm) return;
      event.preventDefault();
      if (answerForm.dataset.sent) return;
      answerForm.dataset.sent = "1";
      const body = new URLSearchParams(new FormData(answerForm, event.submitter));
      const item = items().find((candidate) => candidate.dataset.inboxItem === details.firstElementChild.dataset.inboxCall);
      const answer = await fetchFragment(answerForm.action, { method: "POST", body }).catch(() => null);
      if (!answer) return delete answerForm.dataset.sent;
      const fragment = parseHtml(await answer.text());
      const text = fragment.querySelector("[data-answered]")?.dataset.answered;
      if (text && item && items().length > 1) return settle(item, `${text} ${link(item).textContent.trim()}`);
      if (text) item?.remove();
      details.replaceChildren(fragment);
      if (!answer.ok) details.setAttribute("role", "alert");
    }

    function updateSelection() {
      const boxes = queryAll("input[name=_selected_action]", inbox);
      const count = boxes.filter((box) => box.checked).length;
      const all = inbox.querySelector("[data-tick-all]");
      if (all) {
        all.checked = count > 0 && count === boxes.length;
        all.indeterminate = count > 0 && count < boxes.length;
      }
      for (const element of queryAll("[data-selected-count]", inbox)) element.textContent = count || "";
      for (const element of queryAll("[data-selection-some]", inbox)) element.hidden = !count;
      for (const element of queryAll("[data-selection-none]", inbox)) element.hidden = count > 0;
      for (const button of queryAll("[data-selection-actions] button", inbox)) button.disabled = !count;
      inbox.toggleAttribute("data-selecting", count > 0);
    }

    // New calls are added at the end, so that no row moves; answered ones stay, but can't be selected.
    async function refresh(event) {
      if (event.detail.topic !== "approvals" || event.detail.first) return;
      const answer = await fetchFragment(form.action).catch(() => null);
      if (!answer?.ok) return;
      const fragment = parseHtml(await answer.text());
      const list = inbox.querySelector("[data-inbox-items]");
      const fresh = new Map(queryAll("[data-inbox-item]", fragment).map((item) => [item.dataset.inboxItem, item]));
      if (!items().length && fresh.size) return location.reload();
      for (const item of items()) {
        const isGone = !fresh.has(item.dataset.inboxItem);
        item.toggleAttribute("data-gone", isGone);
        for (const box of queryAll("input", item)) {
          box.disabled = isGone;
          if (isGone) box.checked = false;
        }
        fresh.delete(item.dataset.inboxItem);
      }
      list.append(...fresh.values());
      updateSelection();
      showNew([...fresh.values()]);
    }

    function showNew(added) {
      const newLink = inbox.querySelector("[data-inbox-new]");
      if (!newLink || !added.length) return;
      const total = Number(newLink.dataset.count ?? 0) + added.length;
      newLink.dataset.count = total;
      newLink.textContent = (document.getElementById("page").dataset.newRows ?? "%s").replace("%s", total);
      newLink.hidden = false;
      newLink.onclick = (event) => {
        event.preventDefault();
        added[0].scrollIntoView({ block: "center" });
        newLink.hidden = true;
        newLink.dataset.count = 0;
      };
    }

    function handleKey(event) {
      if (isTyping(event)) return;
      const key = event.key.toLowerCase();
      if (key === "escape" && inbox.hasAttribute("data-opened")) return goBack(event);
      if (event.shiftKey && (key === "a" || key === "d")) {
        const button = form.querySelector(`button[data-key="${key.toUpperCase()}"]`);
        if (button && !button.disabled) button.click();
      } else if (event.shiftKey) return;
      else if (key === "j") move(1);
      else if (key === "k") move(-1);
      else if (key === "x") current()?.querySelector("input[type=checkbox]")?.click();
      else if (key === "enter" && event.target === document.body) select(current());
      else if (!pressAnswer(key)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    }

    function pressAnswer(key) {
      const target = details.querySelector(`.bb-actions [data-key="${key}"]`);
      if (!target || target.disabled) return false;
      target.click();
      if (target.matches("summary")) details.querySelector(".bb-deny textarea")?.focus();
      return true;
    }

    function goBack(event) {
      event.preventDefault();
      inbox.removeAttribute("data-opened");
      history.replaceState({}, "", form.action);
      link(current())?.focus();
    }

    inbox.addEventListener("click", (event) => {
      if (event.target.closest("[data-inbox-back]")) return goBack(event);
      const item = event.target.closest("[data-inbox-item]");
      if (!item || !event.target.closest("a") || event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      select(item);
    });
    inbox.addEventListener("submit", sendAnswer);
    inbox.addEventListener("change", () => setTimeout(updateSelection));
    // Before the keys of other lists.
    document.addEventListener("keydown", handleKey, true);
    document.addEventListener("bonobot:change", refresh);
    addEventListener("popstate", (event) => {
      const item = items().find((candidate) => candidate.dataset.inboxItem === event.state?.inbox);
      if (item) select(item, { push: false });
      else location.reload();
    });
    for (const item of queryAll("[data-preselected]", inbox)) item.removeAttribute("data-preselected");
    history.replaceState({ inbox: current()?.dataset.inboxItem }, "", location.href);
    updateSelection();
  }

  addEventListener("DOMContentLoaded", () => {
    queryAll("[data-inbox]").forEach(setUpInbox);
  });
})();
