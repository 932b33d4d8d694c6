// A client on the first TypeScript SDK: `first.mjs URL`, the token in TOKEN.

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { requestInit, url, use } from "./using.mjs";

const client = new Client({ name: "typescript-1", version: "1" });
const transport = new StreamableHTTPClientTransport(url, { requestInit });
await use(client, transport, () => transport.protocolVersion, undefined);
