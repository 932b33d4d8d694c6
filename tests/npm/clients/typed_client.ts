// A program with the types of /api/schema: compiled strictly, and run against a server.
import createClient from "openapi-fetch";
import type { components, paths } from "./bonobot.js";

declare const process: { argv: string[] };

type Agent = components["schemas"]["Agent"];
type Problem = components["schemas"]["ProblemDetails"];

const [url, token] = process.argv.slice(2) as [string, string];
// Whole objects and problems: without `fields`, no other JSON is answered.
const http = createClient<paths, "application/json" | "application/problem+json">({
  baseUrl: url,
  headers: { Authorization: `Bearer ${token}` },
});

const { data: servers } = await http.GET("/api/mcp-servers", {
  params: { query: { limit: 10, ordering: "-name" } },
});
const names: string[] = servers!.results.map((one) => `${one.name} by ${one.transport_type}`);

const made = await http.POST("/api/agents", { body: { name: "Release helper", max_turns: 20 } });
const agent: Agent = made.data!;

const called = await http.POST("/api/agents/{agent_id}/tools/{name}/call", {
  params: { path: { agent_id: "helper", name: "mcp_time_get_current_time" } },
  body: { arguments: { timezone: "UTC" } },
});

const again = await http.POST("/api/agents", { body: { name: "Release helper" } });
const refused: Problem = again.error!;

// @ts-expect-error: what the document doesn't have, doesn't compile.
const strange: string = agent.nmae;

console.log(
  JSON.stringify({
    names,
    slug: agent.slug,
    max_turns: agent.max_turns,
    outcome: called.data!.outcome,
    is_error: called.data!.is_error,
    code: refused.code,
    field: refused.field,
    strange,
  }),
);
