function buildInput(field) {
  const attributes = { name: field.name };
  if (field.required) attributes.required = "";
  if (!field.choices || !field.choices.length) {
    const types = { boolean: "checkbox", integer: "number", number: "number" };
    return build("input", "", { ...attributes, type: types[field.type] || "text", step: "any" });
  }
  const select = build("select", "", attributes);
  select.append(build("option", "", { value: "" }));
  for (const choice of field.choices) {
    const [value, label] = Array.isArray(choice) ? choice : [choice, choice];
    select.append(build("option", label, { value }));
  }
  return select;
}

function readFields(schema, inputs) {
  const content = {};
  for (const [name, input] of inputs) {
    const type = schema[name].type;
    if (type === "boolean") content[name] = input.checked;
    else if (input.value !== "") content[name] = type === "string" ? input.value : Number(input.value);
  }
  return content;
}

function buildRequest(request, key) {
  const card = document.createElement("article");
  card.append(build("h2", request.server), build("p", request.message));
  const schema = (request.requested_schema && request.requested_schema.properties) || {};
  const required = (request.requested_schema && request.requested_schema.required) || [];
  const isSimple = Object.values(schema).every((field) => field.type !== "array");
  if (key && request.mode === "form" && isSimple) {
    const inputs = Object.entries(schema).map(([name, field]) => {
      const choices = field.enum || (field.oneOf || []).map((item) => [item.const, item.title]);
      const input = buildInput({ name, type: field.type, choices, required: required.includes(name) });
      const label = build("label", `${field.title || name}${required.includes(name) ? " *" : ""}`);
      label.append(input);
      if (field.description) label.append(build("small", field.description));
      card.append(label);
      return [name, input];
    });
    const answer = (action) => () => ({
      request_id: request.id,
      action,
      answer_key: key,
      ...(action === "accept" ? { content: readFields(schema, inputs) } : {}),
    });
    addAnswer(card, "Send", "Sent.", "answer_elicitation_request", answer("accept"));
    addAnswer(card, "Decline", "Declined.", "answer_elicitation_request", answer("decline"));
  }
  addLink(card, request.url);
  return card;
}
host.start((result) => showCards(result, "Elicitation requests", "No requests wait.", buildRequest));
