function buildApproval(approval, key) {
  const card = document.createElement("article");
  card.append(
    build("h2", `${approval.server ? approval.server + ": " : ""}${approval.tool}`),
    build("p", approval.reason),
    build("pre", JSON.stringify(approval.arguments, null, 2)),
  );
  if (approval.flow_labels.length) card.append(build("p", `Session has: ${approval.flow_labels.join(", ")}`));
  card.append(build("p", `Requested by ${approval.requested_by}`));
  const isOutdated = approval.definition_changed;
  if (isOutdated) addChange(card, approval);
  const answer = (value) => () => ({ approval_id: approval.id, answer: value, answer_key: key });
  if (key) {
    if (!isOutdated) addAnswer(card, "Approve", "Approved.", "answer_approval", answer("approve"));
    addAnswer(card, "Deny", "Denied.", "answer_approval", answer("deny"));
  }
  addLink(card, approval.url, isOutdated ? "Review in Bonobot" : undefined);
  return card;
}

// Say why a call can only be denied, and what changed, like the inbox.
function addChange(card, approval) {
  const reviewed = approval.definition_diff === "";
  const next = reviewed
    ? "The new definition is approved. A new approval is requested for this call, or when it is repeated."
    : "After the review of the new definition, a new approval is requested for this call, or when it is repeated.";
  card.append(
    build("strong", "This approval no longer applies"),
    build("p", `The server changed the definition after the approval was requested. ${next}`),
  );
  if (!reviewed) card.append(build("p", "Changed definition:"), build("pre", approval.definition_diff));
}
host.start((result) => showCards(result, "Approvals", "No pending approvals", buildApproval));
