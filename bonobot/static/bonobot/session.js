// The page of a session while it runs: text and progress appear as they arrive.
"use strict";

(() => {
  const { fetchFragment, parseHtml, queryAll, replaceParts } = bonobotFragments;

  // Make invisible characters in the text of models and servers visible (as on the server).
  const HIDDEN = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
  const makeVisible = (text) =>
    text.replace(HIDDEN, (character) =>
      /[\n\t\u200d]/.test(character)
        ? character
        : `⟨U+${character.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}⟩`,
    );

  // A session: text and progress are shown as they arrive; everything else is rendered by the
  // server and fetched.
  const REFRESH_INTERVAL_MS = 600;
  function followSession(container) {
    const list = container.querySelector("[data-steps]");
    const textsBySeq = new Map(); // by step: the text and the thinking so far
    let isFetching = false;
    let refreshTimer = null;
    let lastFetchedAt = 0;
    let source = null;
    let isWaiting = false;

    function refresh() {
      if (refreshTimer) return;
      refreshTimer = setTimeout(fetchSteps, Math.max(0, lastFetchedAt + REFRESH_INTERVAL_MS - Date.now()));
    }

    async function fetchSteps() {
      if (isFetching) {
        refreshTimer = setTimeout(fetchSteps, REFRESH_INTERVAL_MS);
        return;
      }
      refreshTimer = null;
      isFetching = true;
      lastFetchedAt = Date.now();
      try {
        const answer = await fetchFragment(`${container.dataset.fragment}?after=${container.dataset.after ?? 0}`);
        if (answer.ok) showSteps(parseHtml(await answer.text()));
      } catch {
        refresh();
      } finally {
        isFetching = false;
      }
    }

    const endMark = container.querySelector("[data-chat-end]");
    const isAtEnd = () => Math.abs(endMark.getBoundingClientRect().bottom - innerHeight / 2) < innerHeight / 2 + 160;
    const scrollToEnd = (isNearEnd) => isNearEnd && endMark.scrollIntoView({ block: "end" });

    function showSteps(fragment) {
      const end = isAtEnd();
      for (const step of queryAll("[data-seq]", fragment)) {
        const old = list.querySelector(`[data-seq="${step.dataset.seq}"]`);
        if (!old) list.append(step);
        else if (old.dataset.version !== step.dataset.version) {
          if (old.querySelector("details[open]")) step.querySelector("details")?.setAttribute("open", "");
          old.replaceWith(step);
        }
      }
      removeSettledSteps(Number(fragment.querySelector("[data-part=state]")?.dataset.after ?? 0));
      replaceParts(fragment);
      for (const seq of textsBySeq.keys()) renderText(seq);
      const state = container.querySelector("[data-part=state]");
      container.dataset.after = state?.dataset.after ?? container.dataset.after;
      container.dataset.rests = state?.dataset.rests ?? container.dataset.rests;
      if (state?.dataset.rests === "false") listen();
      else stopListening(state?.dataset.rests === "waiting");
      scrollToEnd(end);
    }

    // A turn that ended without text isn't sent again: remove what is shown of it.
    function removeSettledSteps(lastSettledSeq) {
      for (const step of queryAll('[data-version^="intent"]', list)) {
        if (Number(step.dataset.seq) <= lastSettledSeq) step.remove();
      }
    }

    // Text of an incomplete step, until the server renders the complete one.
    function renderText(seq) {
      const textElement = list.querySelector(`[data-seq="${seq}"] [data-writes]`);
      if (!textElement) return false;
      const { text, thinking } = textsBySeq.get(seq);
      textElement.textContent = makeVisible(text);
      textElement.hidden = !textElement.textContent;
      for (const dots of queryAll(".bb-typing", textElement.parentElement)) dots.hidden = !textElement.hidden;
      const thinkingElement = list.querySelector(`[data-seq="${seq}"] [data-thinks]`);
      if (thinkingElement) {
        thinkingElement.textContent = makeVisible(thinking);
        thinkingElement.parentElement.hidden = !thinking;
      }
      return true;
    }

    // A message that replaces others changes the steps above it.
    function handleMessage(event) {
      if (JSON.parse(event.data).replaces) location.reload();
      else refresh();
    }

    function handleModelStep(event) {
      const step = JSON.parse(event.data);
      if (step.state === "intent") textsBySeq.set(step.seq, { text: step.text ?? "", thinking: step.thinking ?? "" });
      else textsBySeq.delete(step.seq);
      if (step.state !== "intent" || !renderText(step.seq)) refresh();
    }

    function handleDelta(event) {
      const { seq, at, text } = JSON.parse(event.data);
      const texts = textsBySeq.get(seq) ?? { text: "", thinking: "" };
      const characters = [...texts[event.type]];
      if (characters.length < at) return;
      const wasNearEnd = isAtEnd();
      textsBySeq.set(seq, { ...texts, [event.type]: characters.slice(0, at).join("") + text });
      renderText(seq);
      scrollToEnd(wasNearEnd);
    }

    function handleProgress(event) {
      const { seq, done, total, message } = JSON.parse(event.data);
      const progress = list.querySelector(`[data-seq="${seq}"] [data-progress]`);
      if (progress) progress.textContent = `${makeVisible(message)} ${total ? `${done} / ${total}` : done}`.trim();
    }

    // No more events are expected; a pending request may still be answered elsewhere.
    function stopListening(waiting) {
      source?.close();
      source = null;
      isWaiting = waiting;
      announceStream(false);
    }

    // The page has one stream at a time: this one, or that of live.js.
    function announceStream(open) {
      document.dispatchEvent(new CustomEvent("bonobot:session", { detail: { open } }));
    }

    function listen() {
      if (source) return;
      announceStream(true);
      source = new EventSource(`${container.dataset.live}?after=${container.dataset.after ?? 0}`);
      source.addEventListener("message", handleMessage);
      for (const name of ["state", "call", "notice", "end", "rest"]) source.addEventListener(name, refresh);
      source.addEventListener("model", handleModelStep);
      source.addEventListener("text", handleDelta);
      source.addEventListener("thinking", handleDelta);
      source.addEventListener("progress", handleProgress);
    }

    document.addEventListener("bonobot:change", (event) => isWaiting && event.detail.topic === "sessions" && refresh());
    if (container.dataset.rests === "false") listen();
    else stopListening(container.dataset.rests === "waiting");
  }

  document.addEventListener("DOMContentLoaded", () => {
    for (const container of queryAll("[data-live]")) if (container.dataset.rests !== "true") followSession(container);
  });
})();
