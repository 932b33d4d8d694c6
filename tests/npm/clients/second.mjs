// A client on the second TypeScript SDK: `second.mjs URL legacy|auto|2026-07-28`, the token in TOKEN.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { requestInit, url, use } from "./using.mjs";

const named = process.argv[3];
const mode = named === "legacy" || named === "auto" ? named : { pin: named };
const client = new Client(
  { name: "typescript-2", version: "1" },
  { versionNegotiation: { mode } },
);
const transport = new StreamableHTTPClientTransport(url, { requestInit });
await use(client, transport, () => client.getNegotiatedProtocolVersion());
