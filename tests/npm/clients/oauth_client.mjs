// A client on the second TypeScript SDK without a token: `oauth_client.mjs URL`.
//
// It prints the address that a person has to open, waits on the loopback until the person is sent
// back, uses what is at the URL, renews its token, and uses it again.

import { createServer } from "node:http";
import {
  Client,
  StreamableHTTPClientTransport,
  UnauthorizedError,
} from "@modelcontextprotocol/client";

const url = new URL(process.argv[2]);
const came = Promise.withResolvers();
const server = createServer((request, response) => {
  const said = new URL(request.url, "http://127.0.0.1").searchParams;
  response.end("<title>Back</title>");
  if (said.has("code") || said.has("error")) came.resolve(said);
});
await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
const redirectUrl = `http://127.0.0.1:${server.address().port}/callback`;

const kept = {};
const provider = {
  redirectUrl,
  clientMetadata: {
    client_name: "TypeScript",
    redirect_uris: [redirectUrl],
    grant_types: ["authorization_code", "refresh_token"],
    response_types: ["code"],
    token_endpoint_auth_method: "none",
  },
  state: () => "a-state",
  clientInformation: () => kept.client,
  saveClientInformation: (client) => void (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => void (kept.tokens = tokens),
  redirectToAuthorization: (to) => console.log(String(to)),
  saveCodeVerifier: (verifier) => void (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (state) => void (kept.discovery = state),
  discoveryState: () => kept.discovery,
};

const made = () => new Client({ name: "typescript-2", version: "1" });
const transport = () => new StreamableHTTPClientTransport(url, { authProvider: provider });

const first = transport();
try {
  await made().connect(first);
} catch (fault) {
  if (!(fault instanceof UnauthorizedError)) throw fault;
}
const said = await came.promise;
server.close();
if (said.has("error")) throw new Error(said.get("error"));
await first.finishAuth(said);
const before = kept.tokens;

const use = async () => {
  const client = made();
  await client.connect(transport());
  const { tools } = await client.listTools();
  await client.close();
  return tools.length;
};
const tools = [await use()];
// What is wrong is answered 401, and then the SDK renews it.
kept.tokens = { ...before, access_token: "bno_000000000000_wrong" };
tools.push(await use());
console.log(
  JSON.stringify({
    tools,
    scope: kept.tokens.scope,
    renewed:
      kept.tokens.access_token !== before.access_token &&
      kept.tokens.refresh_token !== before.refresh_token,
  }),
);
process.exit(0);
