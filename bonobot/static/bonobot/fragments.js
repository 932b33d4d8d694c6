// Fragments of pages that the server renders, and keys: for lists with details beside them (approvals.js,
// audit.js).
"use strict";

const bonobotFragments = (() => {
  const FRAGMENT = { "Bonobot-Fragment": "1" };
  const TEXT_FIELDS = "input:not([type=checkbox]), textarea, select, [contenteditable], dialog[open]";
  const queryAll = (selector, root = document) => [...root.querySelectorAll(selector)];

  function parseHtml(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content;
  }

  async function fetchFragment(url, options = {}, headers = {}) {
    const allHeaders = { ...FRAGMENT, ...headers };
    const answer = await fetch(url, { credentials: "same-origin", ...options, headers: allHeaders });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login/")) location.reload();
    return answer;
  }

  const isTyping = (event) =>
    event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented || event.target.closest(TEXT_FIELDS);

  return { fetchFragment, isTyping, parseHtml, queryAll };
})();
