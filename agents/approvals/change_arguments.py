"""Approve a session's call with changed arguments.

The person edits the arguments as they are shown, with secrets masked; a mask that stays in its
place keeps the secret. The approval gets the digest of the changed call. The session then makes the
call with these arguments, and it is decided again: another rule may deny it or ask.
"""

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction

from agents.approvals.services import require_same_definition, resolve_approval
from agents.models import Approval, Step
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json
from bonobot.core.text.masked_values import MASK
from mcp_servers.models import Definition
from mcp_servers.schemas.classify_schema import read_stored_verdict
from mcp_servers.schemas.subprocess_pool import check_tool_arguments


def compute_arguments_digest(organization_id: UUID, arguments: Any) -> str:
    # Keyed, so that short secrets in arguments can't be found by brute force.
    return compute_fingerprint(organization_id, to_canonical_json(arguments))


def compute_call_digest(
    *,
    requester: str,
    agent_id: UUID | None,
    server_id: UUID | None,
    method: str,
    tool: str,
    uri: str,
    arguments: str,
    definition: str,
    rules: str,
) -> str:
    """Return the digest of a call; `requester` is its session, or `kind:id` of its caller."""
    canonical_call = to_canonical_json(
        {
            "who": requester,
            "agent": str(agent_id or ""),
            "server": str(server_id or ""),
            "method": method,
            "tool": tool,
            "uri": uri,
            "arguments": arguments,
            "definition": definition,
            "rules": rules,
        }
    )
    return compute_digest(canonical_call)


def approve_with_changes(
    principal: Principal, approval: Approval, arguments: Mapping[str, Any], message: str = ""
) -> Approval:
    """Approve a call of a session once, with other arguments.

    Raises `InvalidInput` (field `arguments`) if they aren't changed or a mask was moved,
    `InvalidArguments` if they don't match the tool's schema, `Conflict` if the call isn't waiting,
    and what `resolve_approval` raises.
    """
    principal.require(Action.APPROVE_CALLS)
    if not approval.may_be_changed:
        raise InvalidInput(
            "The arguments of this call can't be changed.",
            field="arguments",
            remedy="Approve or deny it, or ask its caller to change it.",
        )
    require_same_definition(approval)
    step = _find_waiting_step(approval)
    changed = _restore_secrets(arguments, step.payload["arguments"], approval.arguments)
    if changed == step.payload["arguments"]:
        raise InvalidInput(
            "The arguments aren't changed.", field="arguments", remedy="Approve the call."
        )
    _check_schema(approval, changed)
    with transaction.atomic():
        _bind_approval(approval, arguments, changed)
        # Fails if the session ended meanwhile. A worker that has read the step already makes the
        # call with arguments that the approval doesn't cover, so it waits again.
        open_steps = Step.objects.filter(pk=step.pk, call_id=step.call_id, state=Step.State.INTENT)
        if not open_steps.update(payload={**step.payload, "arguments": changed}):
            raise _build_conflict()
        return resolve_approval(principal, approval, "approve", message, is_changed=True)


def _find_waiting_step(approval: Approval) -> Step:
    steps = Step.objects.filter(
        session=approval.session,
        call_id=approval.call_id,
        kind=Step.Kind.CALL,
        state=Step.State.INTENT,
    )
    step: Step | None = steps.first()
    if step is None:
        raise _build_conflict()
    return step


def _check_schema(approval: Approval, arguments: Mapping[str, Any]) -> None:
    """Check the arguments as the call does, so that the person can still correct them."""
    definition = Definition.objects.filter(
        organization=approval.organization_id,
        server=approval.server_id,
        kind=Definition.Kind.TOOL,
        name=approval.own_name,
    ).first()
    if definition is None or approval.method != "tools/call":
        return
    schema = definition.payload.get("inputSchema") or {}
    verdict = read_stored_verdict(definition.schema_verdict, definition.fault)
    get_runtime().call(check_tool_arguments, schema, dict(arguments), verdict)


def _build_conflict() -> Conflict:
    return Conflict("The call isn't waiting any more.", code="already_answered")


def _bind_approval(approval: Approval, shown_arguments: Mapping[str, Any], changed: Any) -> None:
    """Replace the approval's arguments and digests by those of the changed call."""
    approval.requested_arguments = approval.arguments
    approval.arguments = dict(shown_arguments)
    approval.arguments_digest = compute_arguments_digest(approval.organization_id, changed)
    approval.digest = compute_call_digest(
        requester=str(approval.session_id),
        agent_id=approval.agent_id,
        server_id=approval.server_id,
        method=approval.method,
        tool=approval.own_name,
        uri="",
        arguments=approval.arguments_digest,
        definition=approval.definition_digest,
        rules=approval.rules_digest,
    )
    Approval.objects.filter(pk=approval.pk, state=Approval.State.WAITING).update(
        arguments=approval.arguments,
        requested_arguments=approval.requested_arguments,
        arguments_digest=approval.arguments_digest,
        digest=approval.digest,
    )


def _restore_secrets(edited: Any, original: Any, masked: Any) -> Any:
    """Return the edited value with the original instead of each text that is still masked."""
    if isinstance(edited, Mapping):
        originals = original if isinstance(original, Mapping) else {}
        masks = masked if isinstance(masked, Mapping) else {}
        return {
            name: _restore_secrets(value, originals.get(name), masks.get(name))
            for name, value in edited.items()
        }
    if isinstance(edited, list):
        originals_list = original if isinstance(original, list) else []
        masks_list = masked if isinstance(masked, list) else []
        return [
            _restore_secrets(value, _get_item(originals_list, index), _get_item(masks_list, index))
            for index, value in enumerate(edited)
        ]
    if isinstance(edited, str) and MASK in edited:
        if edited != masked or not isinstance(original, str):
            raise InvalidInput(
                format_message("A masked value was changed: {value}.", value=edited[:60]),
                field="arguments",
                remedy="Leave masked values as they are, or replace them completely.",
            )
        return original
    return edited


def _get_item(values: list[Any], index: int) -> Any:
    return values[index] if index < len(values) else None
