// A host of MCP Apps: `apps_client.mjs URL...`, the token in TOKEN.
//
// It prints, for each URL and era, what a host shows for the first tool with a page.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { getToolUiResourceUri, RESOURCE_MIME_TYPE } from "@modelcontextprotocol/ext-apps/app-bridge";
import { requestInit } from "./use_gateway.mjs";

const EXTENSION = "io.modelcontextprotocol/ui";
const capabilities = { extensions: { [EXTENSION]: { mimeTypes: [RESOURCE_MIME_TYPE] } } };

for (const mode of ["legacy", { pin: "2026-07-28" }]) {
  for (const url of process.argv.slice(2)) {
    const client = new Client(
      { name: "apps-host", version: "1" },
      { capabilities, versionNegotiation: { mode } },
    );
    await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
    const { tools } = await client.listTools();
    const tool = tools.find((candidate) => getToolUiResourceUri(candidate));
    const uri = getToolUiResourceUri(tool);
    const listed = (await client.listResources()).resources.find((resource) => resource.uri === uri);
    const [page] = (await client.readResource({ uri })).contents;
    const { content, isError } = await client.callTool({ name: tool.name, arguments: {} });
    const result = { uri, listed: listed?.mimeType, read: page.uri, type: page.mimeType };
    result.html = page.text.length;
    result.called = !isError && content.length > 0;
    console.log(JSON.stringify(result));
    await client.close();
  }
}
