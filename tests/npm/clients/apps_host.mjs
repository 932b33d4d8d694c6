// A host of MCP Apps in a browser, bundled for `apps_host.html`: the page is in a sandboxed iframe.
//
// Calls of the page go to `window.callTool`, which the test provides.

import { AppBridge, PostMessageTransport } from "@modelcontextprotocol/ext-apps/app-bridge";

globalThis.showApp = (html, result) =>
  new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.setAttribute("sandbox", "allow-scripts");
    document.body.append(frame);
    const bridge = new AppBridge(null, { name: "tests", version: "1" }, { serverTools: {}, openLinks: {} });
    bridge.oncalltool = (params) => window.callTool(params.name, params.arguments);
    bridge.onopenlink = async ({ url }) => (window.openedUrl = url) && {};
    bridge.onsizechange = ({ height }) => (frame.height = height);
    bridge.oninitialized = async () => {
      await bridge.sendToolResult(result);
      resolve();
    };
    bridge.connect(new PostMessageTransport(frame.contentWindow, frame.contentWindow));
    frame.srcdoc = html;
  });
