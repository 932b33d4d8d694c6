"use strict";
// The page's side of MCP Apps (SEP-1865): JSON-RPC by postMessage with the host.
const host = (() => {
  const waiting = new Map();
  let lastId = 0;
  let showResult = () => {};
  const post = (message) => window.parent.postMessage({ jsonrpc: "2.0", ...message }, "*");
  const request = (method, params) =>
    new Promise((resolve, reject) => {
      const id = ++lastId;
      waiting.set(id, { resolve, reject });
      post({ id, method, params });
    });
  const setTheme = (context) => {
    const theme = context && context.theme;
    if (theme === "light" || theme === "dark") document.documentElement.style.colorScheme = theme;
  };
  const reportSize = () => {
    const height = Math.ceil(document.documentElement.getBoundingClientRect().height);
    post({ method: "ui/notifications/size-changed", params: { height } });
  };
  window.addEventListener("message", (event) => {
    const message = event.data;
    if (event.source !== window.parent || !message || message.jsonrpc !== "2.0") return;
    if (message.method === undefined) {
      const pending = waiting.get(message.id);
      waiting.delete(message.id);
      if (pending && message.error) pending.reject(new Error(String(message.error.message)));
      else if (pending) pending.resolve(message.result);
    } else if (message.method === "ui/notifications/tool-result") showResult(message.params);
    else if (message.method === "ui/notifications/host-context-changed") setTheme(message.params);
    else if (message.id !== undefined) post({ id: message.id, result: {} });
  });
  return {
    // Connect, and call `show` with each result of the tool that the page belongs to.
    async start(show) {
      showResult = show;
      const answer = await request("ui/initialize", {
        appInfo: { name: "bonobot", version: "1" },
        appCapabilities: {},
        protocolVersion: "2026-01-26",
      });
      setTheme(answer.hostContext);
      post({ method: "ui/notifications/initialized" });
      new ResizeObserver(reportSize).observe(document.documentElement);
    },
    callTool: (name, args) => request("tools/call", { name, arguments: args }),
    openLink: (url) => request("ui/open-link", { url }),
  };
})();

// Create an element; texts are never parsed as HTML.
function build(tag, text, attributes = {}) {
  const element = document.createElement(tag);
  element.textContent = text;
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}

// Return what a failed result says, or "".
function getRefusal(result) {
  if (!result.isError) return "";
  const problem = (result._meta || {})["bonobot/problem"] || {};
  const text = problem.detail || ((result.content || [])[0] || {}).text || "The request failed.";
  return [text, problem.remedy, problem.code && `(${problem.code})`].filter(Boolean).join(" ");
}

// Add a button that calls a tool and replaces its card with the outcome.
function addAnswer(card, label, done, name, getArguments) {
  const button = build("button", label, { type: "button" });
  button.addEventListener("click", async () => {
    const buttons = [...card.querySelectorAll("button")];
    for (const other of buttons) other.disabled = true;
    const alert = card.querySelector("[role=alert]") || card.appendChild(build("p", "", { role: "alert" }));
    try {
      const refusal = getRefusal(await host.callTool(name, getArguments()));
      alert.textContent = refusal || done;
      if (refusal) for (const other of buttons) other.disabled = false;
      else for (const other of buttons) other.remove();
    } catch (error) {
      alert.textContent = error.message;
      for (const other of buttons) other.disabled = false;
    }
  });
  card.append(button);
}

function addLink(card, url, label = "Open in Bonobot") {
  if (!url) return;
  const button = build("button", label, { type: "button" });
  button.addEventListener("click", () => host.openLink(url).catch(() => {}));
  card.append(button);
}

const main = document.querySelector("main");
function showCards(result, title, empty, buildCard) {
  const refusal = getRefusal(result);
  const rows = ((result.structuredContent || {}).results || []).filter((row) => row.state === "waiting");
  const key = (result._meta || {})["bonobot/answer_key"];
  main.replaceChildren(build("h1", title), ...rows.map((row) => buildCard(row, key)));
  if (refusal) main.append(build("p", refusal, { role: "alert" }));
  else if (!rows.length) main.append(build("p", empty));
}
