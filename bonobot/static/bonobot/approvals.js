// The inbox of approvals. Without this script, its links open pages and its forms are sent as usual.
"use strict";

(() => {
  const { fetchFragment, isTyping, parseHtml, queryAll } = bonobotFragments;

  function setUpInbox(inbox) {
    const details = inbox.querySelector("[data-inbox-details]");
    const form = inbox.querySelector("[data-inbox-list]");
    const items = () => queryAll("[data-inbox-item]", inbox);
    const current = () => inbox.querySelector("[data-inbox-item][aria-current]");
    const link = (item) => item?.querySelector("a[href]");
    // The list with its filters; the page of a call has none. Not `form.action`: its buttons have that name.
    const listUrl = location.pathname === inbox.dataset.url ? location.href : form.getAttribute("action");
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
      document.dispatchEvent(new CustomEvent("bonobot:toast", { detail: text }));
      if (!next) return;
      item.remove();
      updateSelection();
      select(next, { opens: false });
    }

    async function sendAnswer(event) {
      const answerForm = event.target.closest("[data-inbox-answer]");
      if (!answerForm) return;
      event.preventDefault();
      if (answerForm.dataset.sent) return;
      answerForm.dataset.sent = "1";
      const body = new URLSearchParams(new FormData(answerForm, event.submitter));
      const { inboxCall } = details.firstElementChild.dataset;
      const item = items().find((candidate) => candidate.dataset.inboxItem === inboxCall);
      const answer = await fetchFragment(answerForm.getAttribute("action"), { method: "POST", body }).catch(() => null);
      if (!answer) return delete answerForm.dataset.sent;
      const fragment = parseHtml(await answer.text());
      const text = fragment.querySelector("[data-answered]")?.dataset.answered;
      if (text && item && items().length > 1) return settle(item, `${link(item).textContent.trim()}: ${text}`);
      if (!answer.ok) return showProblem(answerForm, fragment, answer.status);
      if (text) item?.remove();
      details.replaceChildren(fragment);
      if (!items().length) await refresh({ detail: { topic: "approvals" } });
    }

    // Invalid input is corrected where it was entered. For all else, the call is loaded again: someone may
    // have answered it meanwhile.
    async function showProblem(answerForm, problem, status) {
      delete answerForm.dataset.sent;
      const isInvalid = status === 400;
      if (!isInvalid) {
        const current = await fetchFragment(answerForm.dataset.callUrl).catch(() => null);
        if (current?.ok) details.replaceChildren(parseHtml(await current.text()));
      }
      for (const shown of queryAll("[data-answer-problem]", details)) shown.remove();
      const box = document.createElement("div");
      box.dataset.answerProblem = "";
      box.append(problem);
      const opened = isInvalid && details.querySelector(".bb-deny[open] .bb-deny-form");
      (opened || details.querySelector(".bb-details-body")).prepend(box);
      box.scrollIntoView({ block: "nearest" });
    }

    function updateSelection() {
      const boxes = queryAll("input[name=_selected_action]", inbox);
      const across = inbox.querySelector("[data-tick-across]");
      const ticked = boxes.filter((box) => box.checked).length;
      const count = across?.checked ? Number(across.dataset.tickAcross) : ticked;
      const all = inbox.querySelector("[data-tick-all]");
      if (all) {
        all.checked = ticked > 0 && ticked === boxes.length;
        all.indeterminate = ticked > 0 && ticked < boxes.length;
      }
      for (const element of queryAll("[data-selected-count]", inbox)) element.textContent = count || "";
      for (const element of queryAll("[data-selection-some]", inbox)) element.hidden = !count;
      for (const element of queryAll("[data-selection-none]", inbox)) element.hidden = count > 0;
      for (const button of queryAll("[data-selection-actions] button", inbox)) button.disabled = !count;
      inbox.toggleAttribute("data-selecting", count > 0);
      if (!across) return;
      const isWholePage = across.checked || (ticked > 0 && ticked === boxes.filter((box) => !box.disabled).length);
      across.closest("label").hidden = !isWholePage;
      inbox.querySelector("[data-across-hint]").hidden = isWholePage;
    }

    // All pages are selected only with all calls of this one.
    function changeSelection(event) {
      const across = inbox.querySelector("[data-tick-across]");
      if (across && event.target !== across && !event.target.checked) across.checked = false;
      setTimeout(updateSelection);
    }

    // New calls are added at the end, so that no row moves; answered ones stay, but can't be selected. Also for
    // the first version: a call that was made while the page was loaded must not stay unseen.
    async function refresh(event) {
      if (event.detail.topic !== "approvals") return;
      const shown = { "Bonobot-Shown": items().map((item) => item.dataset.inboxItem).join(" ") };
      const answer = await fetchFragment(listUrl, {}, shown).catch(() => null);
      if (!answer?.ok) return;
      const fragment = parseHtml(await answer.text());
      const list = inbox.querySelector("[data-inbox-items]");
      const { stillPending } = fragment.querySelector("[data-inbox-items]").dataset;
      const pending = new Set(stillPending.split(" "));
      const fresh = new Map(queryAll("[data-inbox-item]", fragment).map((item) => [item.dataset.inboxItem, item]));
      if (!items().length && fresh.size) return location.reload();
      if (!items().length) return showEmptyList(fragment);
      for (const item of items()) {
        const isGone = !pending.has(item.dataset.inboxItem); // others may have moved to another page
        item.toggleAttribute("data-gone", isGone);
        for (const box of queryAll("input", item)) {
          box.disabled = isGone;
          if (isGone) box.checked = false;
        }
        showOutdated(item, fresh.get(item.dataset.inboxItem));
        fresh.delete(item.dataset.inboxItem);
      }
      list.append(...fresh.values());
      updateAcross(fragment);
      updateSelection();
      // What came from another page isn't new.
      const loadedAt = Number(inbox.dataset.loaded);
      showNew([...fresh.values()].filter((item) => Number(item.dataset.requested) >= loadedAt));
    }

    // A call whose definition changed, or changed back: its details have other buttons.
    function showOutdated(item, freshItem) {
      if (!freshItem || item.hasAttribute("data-outdated") === freshItem.hasAttribute("data-outdated")) return;
      item.toggleAttribute("data-outdated");
      item.querySelector(".bb-item-main").replaceWith(freshItem.querySelector(".bb-item-main"));
      if (item === current()) select(item, { opens: inbox.hasAttribute("data-opened"), push: false });
    }

    // The line about other pages keeps its place, so that the list below it doesn't move.
    function updateAcross(fragment) {
      const across = inbox.querySelector("[data-tick-across]");
      if (!across || across.checked) return;
      const fresh = fragment.querySelector("[data-tick-across]");
      if (fresh) across.closest("[data-across]").replaceWith(fresh.closest("[data-across]"));
      else across.disabled = true;
    }

    // Access requests are read with the page, since they are few. Above calls, none is added or removed, so
    // that no call moves: answered ones are marked, and the tab has the number of new ones.
    async function refreshAccessRequests(event) {
      const shown = inbox.querySelector("[data-inbox-requests]");
      if (!shown || event.detail.topic !== "access_requests" || event.detail.first) return;
      const answer = await fetch(inbox.dataset.url).catch(() => null);
      if (!answer?.ok) return;
      const fresh = parseHtml(await answer.text()).querySelector("[data-inbox-requests]");
      if (!fresh) return;
      if (!items().length) return shown.replaceWith(fresh);
      const pending = new Set(queryAll("a", fresh).map((link) => link.getAttribute("href")));
      for (const row of queryAll("li", shown)) {
        row.toggleAttribute("data-gone", !pending.has(row.querySelector("a").getAttribute("href")));
      }
    }

    function showEmptyList(fragment) {
      for (const element of queryAll(".bb-pane-head, [data-inbox-items]", form)) element.remove();
      form.append(fragment);
    }

    // A call is new until its row was in view.
    const unseen = new Set();
    const viewer = new IntersectionObserver((entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        unseen.delete(target);
        viewer.unobserve(target);
      }
      updateNew();
    });

    function showNew(added) {
      for (const item of added) {
        unseen.add(item);
        viewer.observe(item);
      }
    }

    function updateNew() {
      const newLink = inbox.querySelector("[data-inbox-new]");
      if (!newLink) return;
      for (const item of unseen) if (!item.isConnected) unseen.delete(item);
      newLink.textContent = (document.getElementById("live").dataset.newRows ?? "#").replace("#", unseen.size);
      newLink.hidden = !unseen.size;
      newLink.onclick = (event) => {
        event.preventDefault();
        [...unseen][0].scrollIntoView({ block: "center" });
      };
    }

    function handleKey(event) {
      const key = event.key.toLowerCase();
      if (document.querySelector("dialog[open]")) return;
      if (key === "escape" && closePopovers()) return;
      if (key === "escape" && inbox.hasAttribute("data-opened")) return goBack(event);
      if (key === "enter" && (event.ctrlKey || event.metaKey) && sendPopover(event)) return;
      if (isTyping(event)) return;
      if (event.shiftKey) return;
      if (key === "j") move(1);
      else if (key === "k") move(-1);
      else if (key === "x") current()?.querySelector("input[type=checkbox]")?.click();
      else if (key === "enter" && event.target === document.body) select(current());
      else if (!pressAnswer(key)) return;
      event.preventDefault();
      event.stopImmediatePropagation();
    }

    function closePopovers() {
      const opened = queryAll(".bb-deny[open]", details);
      for (const popover of opened) popover.open = false;
      opened[0]?.querySelector("summary").focus();
      return opened.length > 0;
    }

    // Ctrl+Enter, or Cmd+Enter, in the text of an answer sends it.
    function sendPopover(event) {
      const button = event.target.closest(".bb-deny-form")?.querySelector("button[name=answer]");
      if (!button || button.disabled) return false;
      event.preventDefault();
      if (!event.repeat) button.click();
      return true;
    }

    // With selected calls, A and D answer those, and not the call in the details.
    function pressAnswer(key) {
      updateSelection(); // a key may follow the one that selected a call at once
      const selectionButton = form.querySelector(`button[data-key="${key}"]`);
      if (selectionButton && !selectionButton.disabled) {
        selectionButton.click();
        return true;
      }
      const target = details.querySelector(`.bb-actions [data-key="${key}"]`);
      if (!target || target.disabled) return false;
      target.click();
      if (target.matches("summary")) target.parentElement.querySelector("textarea").focus();
      return true;
    }

    function goBack(event) {
      event.preventDefault();
      inbox.removeAttribute("data-opened");
      history.replaceState({}, "", listUrl);
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
    inbox.addEventListener("change", changeSelection);
    // Before the keys of other lists.
    document.addEventListener("keydown", handleKey, true);
    document.addEventListener("bonobot:change", refresh);
    document.addEventListener("bonobot:change", refreshAccessRequests);
    addEventListener("popstate", (event) => {
      const item = items().find((candidate) => candidate.dataset.inboxItem === event.state?.inbox);
      if (item) select(item, { push: false });
      else location.reload();
    });
    for (const item of queryAll("[data-preselected]", inbox)) item.removeAttribute("data-preselected");
    history.replaceState({ inbox: current()?.dataset.inboxItem }, "", location.href);
    updateSelection();
  }

  addEventListener("DOMContentLoaded", () => queryAll("[data-inbox]").forEach(setUpInbox));
})();
