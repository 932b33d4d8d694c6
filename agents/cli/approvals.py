"""The command group `approvals`: list, show, approve and deny calls."""

import argparse
import time
from collections.abc import Iterable
from math import inf
from typing import Any

from django.utils import timezone

from agents.cli import elicitations
from agents.models import Approval, ElicitationRequest, Session
from agents.models.page_urls import build_page_url
from bonobot.core.cli import watch_rows
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.text.untrusted_text import make_visible

# Answers at a terminal; the first one is the default.
ANSWERS = {"no": "deny", "yes": "approve", "for this session": "approve_session"}
POLL_INTERVAL_S = 1.0
SHOWN_FIELDS = ("id", "state", "name", "server", "agent", "requested_by", "expires_at")


def serialize_approvals(approvals: Iterable[Approval]) -> list[dict[str, Any]]:
    from agents.approvals.changed_definitions import find_outdated_approvals

    rows = list(approvals)
    outdated = find_outdated_approvals(rows, timezone.now())
    return [_serialize_approval(row, definition_changed=row.pk in outdated) for row in rows]


def _serialize_approval(approval: Approval, *, definition_changed: bool) -> dict[str, Any]:
    return {
        "id": str(approval.pk),
        "state": approval.state,
        "name": approval.label,
        "tool": approval.own_name,
        "server": approval.server_name,
        "agent": approval.agent.slug if approval.agent else "",
        "session_id": str(approval.session_id) if approval.session_id else None,
        "requested_by": approval.requested_by,
        "arguments": approval.arguments,
        "arguments_digest": approval.arguments_digest,
        "definition_changed": definition_changed,
        "rule": approval.rule,
        "reason": approval.reason,
        "flow_labels": approval.flow_labels,
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "decided_by": approval.decided_by,
        "message": approval.message,
        "url": build_page_url(approval),
    }


def answer_pending_requests(
    cli: CommandContext, session: Session, *, wait: bool, timeout_s: float
) -> bool:
    """Get a session's pending requests answered; return whether it continues.

    Asks on the terminal if possible; otherwise, with `wait`, waits for an answer from elsewhere.
    Raises `ServiceUnavailable` (code `still_waiting`) after `timeout_s` seconds.
    """
    from agents.approvals.services import is_own_call, resolve_approval

    if elicitations.answer_at_terminal(cli, session):
        return True
    if not _is_waiting(session):
        return False
    _wait_for_started_sessions(session, timeout_s)
    if not _is_waiting(session):
        return True
    if elicitations.answer_at_terminal(cli, session):
        return True
    pending = list(Approval.objects.pending().in_session_tree(session.pk))
    if cli.can_ask and pending and not is_own_call(cli.principal, pending[0]):
        for approval in pending:
            _print_approval(cli, approval)
            resolve_approval(cli.principal, approval, cli.choose("Approve this call?", ANSWERS))
        return True
    if not wait:
        return False
    show_pending_requests(cli, session)
    deadline = time.monotonic() + timeout_s
    while _is_waiting(session):
        if time.monotonic() > deadline:
            raise ServiceUnavailable(
                f"The session {session.pk} is still waiting for a person.",
                code="still_waiting",
                remedy="List the pending approvals: bonobot approvals list",
            )
        watch_rows.pause(POLL_INTERVAL_S)
    return True


def _wait_for_started_sessions(session: Session, timeout_s: float) -> None:
    """Wait while a session waits only for running sessions that it started.

    Without a live worker, this process runs them. No time limit if `timeout_s` is 0.
    """
    from agents.sessions.leases import has_live_runner
    from agents.sessions.worker import get_session_runner
    from bonobot.core.runtime import get_runtime

    deadline = time.monotonic() + (timeout_s or inf)
    started_sessions = Session.objects.filter(root_id=session.pk).unfinished()
    while _is_waiting(session) and time.monotonic() < deadline:
        if _has_pending_requests(session):
            return
        session_ids = list(started_sessions.values_list("pk", flat=True))
        if not session_ids:
            return
        if not has_live_runner():
            for session_id in session_ids:
                get_runtime().call(get_session_runner().claim_and_run, session_id)
        watch_rows.pause(POLL_INTERVAL_S)


def _has_pending_requests(session: Session) -> bool:
    """Tell whether the session, or one that it started, waits for a person."""
    return any(
        model.objects.pending().in_session_tree(session.pk).exists()
        for model in (Approval, ElicitationRequest)
    )


def show_pending_requests(cli: CommandContext, session: Session) -> None:
    """Print what the session waits for and how to answer it."""
    elicitations.show_elicitation_requests(cli, session)
    for approval in Approval.objects.pending().in_session_tree(session.pk):
        cli.print_message(
            f"{make_visible(approval.label, 120)} requires approval: "
            f"{make_visible(approval.reason)}"
        )
        cli.print_message(
            f"bonobot approvals approve {approval.pk}   "
            f"(or deny, or open {build_page_url(approval)})"
        )


def _is_waiting(session: Session) -> bool:
    return Session.objects.filter(pk=session.pk, status=Session.Status.WAITING).exists()


def _get_approval(cli: CommandContext, pk: str) -> Approval:
    approval: Approval = elicitations.get_request(cli, Approval, pk)
    return approval


def _list_approvals(cli: CommandContext, options: argparse.Namespace) -> None:
    def render_approvals(approvals: list[dict[str, Any]]) -> Any:
        columns = ("ID", "STATE", "CALL", "SERVER", "AGENT", "REQUESTED BY", "EXPIRES")
        rows = [
            elicitations.build_row(
                approval | {"state": _format_state(approval)}, *SHOWN_FIELDS[:-1]
            )
            for approval in approvals
        ]
        return build_table(*columns, rows=rows, empty="No pending approvals.")

    elicitations.list_requests(cli, options, Approval, serialize_approvals, render_approvals)


def _format_state(serialized: dict[str, Any]) -> str:
    """Return the state in the words of the admin; JSON has the code."""
    suffix = " (definition changed)" if serialized["definition_changed"] else ""
    state = Approval.State(serialized["state"])
    label = "Pending approval" if state == Approval.State.WAITING else str(state.label).capitalize()
    return f"{label}{suffix}"


def _show_approval(cli: CommandContext, options: argparse.Namespace) -> None:
    approval = _get_approval(cli, options.id)
    cli.emit(*serialize_approvals([approval]))
    if not cli.as_json:
        _print_approval(cli, approval)


def _print_approval(cli: CommandContext, approval: Approval) -> None:
    from rich.json import JSON
    from rich.padding import Padding

    [serialized] = serialize_approvals([approval])
    serialized["state"] = _format_state(serialized)
    rows = [
        (name, serialized[name]) for name in (*SHOWN_FIELDS, "rule", "reason", "decided_by", "url")
    ]
    rows.append(("message to model", approval.message))
    rows.append(("flow labels seen", ", ".join(approval.flow_labels)))
    cli.emit(None, build_table("", "", rows=[row for row in rows if row[1]], empty=""))
    if not cli.as_json:
        text = make_visible(JSON.from_data(approval.arguments).text.plain)
        cli.out.print(Padding(JSON(text) if text.isascii() else text, (0, 2)), markup=False)


def _approve_call(cli: CommandContext, options: argparse.Namespace) -> None:
    decision = "approve_session" if options.session else "approve"
    _decide_call(cli, options.id, decision)


def _deny_call(cli: CommandContext, options: argparse.Namespace) -> None:
    _decide_call(cli, options.id, "deny", options.message)


def _decide_call(cli: CommandContext, pk: str, decision: str, message: str = "") -> None:
    from agents.approvals.services import resolve_approval

    approval = resolve_approval(cli.principal, _get_approval(cli, pk), decision, message)
    cli.emit(*serialize_approvals([approval]))
    cli.print_message(f"{make_visible(approval.label, 120)}: {approval.state}")


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {elicitations.MAX_LISTED} approvals (default: pending ones)",
        _list_approvals,
        arguments=elicitations.build_list_arguments(Approval),
        examples=("approvals list", "approvals list --watch", "approvals list --state all --json"),
    ),
    CommandVerb(
        "show",
        "Show an approval with the exact arguments of the call",
        _show_approval,
        arguments=(elicitations.ID_ARGUMENT,),
        examples=("approvals show 0198c0de-…",),
    ),
    CommandVerb(
        "approve",
        "Approve a call once, or its tool for the whole session",
        _approve_call,
        arguments=(
            elicitations.ID_ARGUMENT,
            Argument("--session", "Approve the tool for the whole session"),
        ),
        examples=("approvals approve 0198c0de-…", "approvals approve 0198c0de-… --session"),
    ),
    CommandVerb(
        "deny",
        "Deny a call, with an optional message to the model",
        _deny_call,
        arguments=(
            elicitations.ID_ARGUMENT,
            Argument("--message MESSAGE", "Message to the model", default=""),
        ),
        examples=('approvals deny 0198c0de-… --message "Use the staging server."',),
    ),
)
