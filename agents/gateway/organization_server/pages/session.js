host.start((result) => {
  const session = result.structuredContent || {};
  const refusal = getRefusal(result);
  main.replaceChildren(build("h1", refusal ? "Session" : `Session: ${session.status || ""}`));
  if (refusal) main.append(build("p", refusal, { role: "alert" }));
  for (const step of session.steps || []) {
    const card = document.createElement("article");
    card.append(build("h2", [step.kind, step.name, step.state].filter(Boolean).join(" · ")));
    const text = typeof step.text === "string" ? step.text : JSON.stringify(step, null, 2);
    if (text) card.append(build("pre", text.slice(0, 20000)));
    main.append(card);
  }
});
