// A client of Skills over MCP (SEP-2640): `skills_client.mjs URL...`, the token in TOKEN.
//
// It prints the skills of each URL in each era. The SDK compares each file with the digest that was
// declared, and the frontmatter.

import { Client, StreamableHTTPClientTransport } from "@modelcontextprotocol/client";
import { SkillsClient } from "@modelcontextprotocol/client/ext/skills";
import { requestInit } from "./use_gateway.mjs";

for (const mode of ["legacy", { pin: "2026-07-28" }]) {
  for (const url of process.argv.slice(2)) {
    const client = new Client({ name: "skills", version: "1" }, { versionNegotiation: { mode } });
    await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit }));
    const skills = new SkillsClient(client);
    const listed = (await skills.list()).skills;
    const files = [];
    for (const skill of listed) {
      const { uri } = (await skills.get(skill.uri)).skill;
      const { verified, frontmatter, body } = await skills.read(skill);
      files.push({ uri, verified, name: frontmatter.name, body: body.trim() });
    }
    console.log(JSON.stringify({ supported: skills.supported, files }));
    await client.close();
  }
}
