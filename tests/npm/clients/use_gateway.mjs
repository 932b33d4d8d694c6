// What every client of the TypeScript SDK does here, and what it prints: see tests/clients.

const named = (all, name) => all.find((one) => one.name.endsWith(name));

// `schema` is what the first SDK wants before a call's options.
export async function use(client, transport, era, ...schema) {
  await client.connect(transport);
  const { tools } = await client.listTools();
  const { resources } = await client.listResources();
  const { prompts } = await client.listPrompts();
  const progress = [];
  const called = await client.callTool(
    { name: named(tools, "test_tool_with_progress").name, arguments: {} },
    ...schema,
    { onprogress: (told) => progress.push(told.progress) },
  );
  const read = await client.readResource({ uri: named(resources, "static-text").uri });
  const prompt = await client.getPrompt({
    name: named(prompts, "test_prompt_with_arguments").name,
    arguments: { arg1: "one", arg2: "two" },
  });
  console.log(
    JSON.stringify({
      era: era(),
      tools: tools.length,
      called: called.content[0].text,
      progress,
      resource: read.contents[0].text,
      prompt: prompt.messages[0].content.text,
    }),
  );
  await client.close();
}

export const requestInit = { headers: { Authorization: `Bearer ${process.env.TOKEN}` } };
