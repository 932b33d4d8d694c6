"""The command group `approvals`: list, show, approve and deny calls."""

import argparse
import time
from functools import partial
from typing import Any

from rich.json import JSON
from rich.padding import Padding

from agents.approvals.services import answer, build_page_url, is_own
from agents.cli import elicitations
from agents.models import Approval, Session
from bonobot.core.cli import command_group
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import ServiceUnavailable
from bonobot.core.text.untrusted_text import make_visible

# Answers at a terminal; the first one is the default.
ANSWERS = {"no": "deny", "yes": "approve", "for this session": "approve_session"}
LOOK_EVERY_S = 1.0
SHOWN = ("id", "state", "name", "server", "agent", "requested_by", "expires_at")


def as_json(approval: Approval) -> dict[str, Any]:
    """Return the JSON representation of an approval."""
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
        "rule": approval.rule,
        "reason": approval.reason,
        "held": approval.held,
        "created_at": approval.created_at,
        "expires_at": approval.expires_at,
        "decided_by": approval.decided_by,
        "word": approval.word,
        "url": build_page_url(approval),
    }


def answer_pending_requests(
    cli: CommandContext, session: Session, *, wait: bool, timeout_s: float
) -> bool:
    """Get a waiting session's pending requests answered; return whether it continues.

    Asks on the terminal if possible; otherwise, with `wait`, waits for an answer from elsewhere.
    Raises `ServiceUnavailable` (code `still_waiting`) after `timeout_s` seconds.
    """
    if not _is_waiting(session):
        return False
    if elicitations.answer_here(cli, session):
        return True
    asked = list(session.approvals.waiting().order_by("created_at"))
    if cli.can_ask and asked and not is_own(cli.principal, asked[0]):
        for approval in asked:
            _draw(cli, approval)
            answer(cli.principal, approval, cli.choose("May this call be made?", ANSWERS))
        return True
    if not wait:
        return False
    show_pending_requests(cli, session)
    until = time.monotonic() + timeout_s
    while _is_waiting(session):
        if time.monotonic() > until:
            raise ServiceUnavailable(
                f"The session {session.pk} still waits for a person.",
                code="still_waiting",
                remedy="bonobot approvals list",
            )
        command_group.pause(LOOK_EVERY_S)
    return True


def show_pending_requests(cli: CommandContext, session: Session) -> None:
    """Print what the session waits for and how to answer it."""
    elicitations.show_elicitation_requests(cli, session)
    for approval in session.approvals.waiting():
        cli.say(
            f"{make_visible(approval.label, 120)} waits for a person: "
            f"{make_visible(approval.reason)}"
        )
        cli.say(
            f"bonobot approvals approve {approval.pk}   (or deny; or {build_page_url(approval)})"
        )


def _is_waiting(session: Session) -> bool:
    return Session.objects.filter(pk=session.pk, status=Session.Status.WAITING).exists()


def _find(cli: CommandContext, pk: str) -> Approval:
    found: Approval = elicitations.find(cli, Approval, pk)
    return found


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    def drawn(found: list[dict[str, Any]]) -> Any:
        columns = ("ID", "STATE", "CALL", "SERVER", "AGENT", "ASKED BY", "EXPIRES")
        rows = [elicitations.build_row(one, *SHOWN[:-1]) for one in found]
        return build_table(*columns, rows=rows, empty="No call waits for a person.")

    elicitations.show_list(cli, options, Approval, as_json, drawn)


def _show(cli: CommandContext, options: argparse.Namespace) -> None:
    approval = _find(cli, options.id)
    cli.emit(as_json(approval))
    if not cli.as_json:
        _draw(cli, approval)


def _draw(cli: CommandContext, approval: Approval) -> None:
    shown = as_json(approval)
    rows = [(name, shown[name]) for name in (*SHOWN, "rule", "reason", "decided_by", "word", "url")]
    rows.append(("seen before", ", ".join(approval.held)))
    cli.emit(None, build_table("", "", rows=[row for row in rows if row[1]], empty=""))
    if not cli.as_json:
        text = make_visible(JSON.from_data(approval.arguments).text.plain)
        cli.out.print(Padding(JSON(text) if text.isascii() else text, (0, 2)), markup=False)


def _approve_arguments(parser: argparse.ArgumentParser) -> None:
    elicitations.add_id_argument(parser)
    parser.add_argument("--session", action="store_true", help="for the rest of its session")


def _approve(cli: CommandContext, options: argparse.Namespace) -> None:
    said = "approve_session" if options.session else "approve"
    _answer(cli, options.id, said)


def _deny_arguments(parser: argparse.ArgumentParser) -> None:
    elicitations.add_id_argument(parser)
    parser.add_argument("--word", default="", help="told to the model")


def _deny(cli: CommandContext, options: argparse.Namespace) -> None:
    _answer(cli, options.id, "deny", options.word)


def _answer(cli: CommandContext, pk: str, said: str, word: str = "") -> None:
    done = answer(cli.principal, _find(cli, pk), said, word)
    cli.emit(as_json(done))
    cli.say(f"{make_visible(done.label, 120)}: {done.state}")


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {elicitations.LISTED} calls that wait for a person.",
        _list,
        partial(elicitations.add_list_arguments, model=Approval),
        ("approvals list", "approvals list --watch", "approvals list --state all --json"),
    ),
    CommandVerb(
        "show",
        "Show what is asked, with the exact arguments.",
        _show,
        elicitations.add_id_argument,
        ("approvals show 0198c0de-…",),
    ),
    CommandVerb(
        "approve",
        "Let a call through once, or its tool for the session.",
        _approve,
        _approve_arguments,
        ("approvals approve 0198c0de-…", "approvals approve 0198c0de-… --session"),
    ),
    CommandVerb(
        "deny",
        "Deny a call, with a word to the model.",
        _deny,
        _deny_arguments,
        ('approvals deny 0198c0de-… --word "Use the staging server."',),
    ),
)
