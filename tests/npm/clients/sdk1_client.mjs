// A client on the first TypeScript SDK: `sdk1_client.mjs URL...`, the token in TOKEN.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { requestInit, use } from "./use_gateway.mjs";

for (const url of process.argv.slice(2)) {
  const client = new Client({ name: "typescript-1", version: "1" });
  const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
  await use(client, transport, () => transport.protocolVersion, undefined);
}
