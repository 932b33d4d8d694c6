function buildApproval(approval, key) {
  const card = document.createElement("article");
  card.append(
    build("h2", `${approval.server ? approval.server + ": " : ""}${approval.tool}`),
    build("p", approval.reason),
    build("pre", JSON.stringify(approval.arguments, null, 2)),
  );
  if (approval.flow_labels.length) card.append(build("p", `Session has: ${approval.flow_labels.join(", ")}`));
  card.append(build("p", `Requested by ${approval.requested_by}`));
  const answer = (value) => () => ({ approval_id: approval.id, answer: value, answer_key: key });
  if (key) {
    addAnswer(card, "Approve", "Approved.", "answer_approval", answer("approve"));
    addAnswer(card, "Deny", "Denied.", "answer_approval", answer("deny"));
  }
  addLink(card, approval.url);
  return card;
}
host.start((result) => showCards(result, "Approvals", "No calls wait for approval.", buildApproval));
