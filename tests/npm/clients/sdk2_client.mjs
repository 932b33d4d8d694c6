// A client on the second TypeScript SDK: `sdk2_client.mjs MODES URL...`, the token in TOKEN.
//
// MODES are separated by commas: legacy, auto or 2026-07-28. It prints a line for each mode and URL.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { requestInit, use } from "./use_gateway.mjs";

const [modes, ...urls] = process.argv.slice(2);
for (const named of modes.split(",")) {
  const mode = named === "legacy" || named === "auto" ? named : { pin: named };
  for (const url of urls) {
    const client = new Client(
      { name: "typescript-2", version: "1" },
      { versionNegotiation: { mode } },
    );
    const transport = new StreamableHTTPClientTransport(new URL(url), { requestInit });
    await use(client, transport, () => client.getNegotiatedProtocolVersion());
  }
}
