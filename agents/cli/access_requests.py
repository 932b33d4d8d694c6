"""The command group `access-requests`: list, show, create, cancel and answer requests."""

import argparse
from collections.abc import Iterable
from functools import partial
from typing import Any

from agents.cli import elicitations
from agents.cli.agents import get_agent
from agents.models import AccessRequest
from agents.models.page_urls import build_page_url
from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.text.untrusted_text import make_visible

SHOWN_FIELDS = ("id", "state", "kind", "target", "agent", "requested_by", "expires_at")


def serialize_access_request(access_request: AccessRequest) -> dict[str, Any]:
    return {
        "id": str(access_request.pk),
        "state": access_request.state,
        "kind": access_request.kind,
        "target": access_request.target,
        "agent": access_request.agent.slug if access_request.agent else "",
        "reason": access_request.reason,
        "requested_by": access_request.requested_by,
        "created_at": access_request.created_at,
        "expires_at": access_request.expires_at,
        "answered_at": access_request.answered_at,
        "answered_by": access_request.answered_by,
        "message": access_request.message,
        "url": build_page_url(access_request),
    }


def _serialize_access_requests(access_requests: Iterable[AccessRequest]) -> list[dict[str, Any]]:
    return [serialize_access_request(access_request) for access_request in access_requests]


def _list_access_requests(cli: CommandContext, options: argparse.Namespace) -> None:
    def render_requests(requests: list[dict[str, Any]]) -> Any:
        columns = ("ID", "STATE", "TYPE", "NAME", "AGENT", "REQUESTED BY", "EXPIRES")
        rows = [elicitations.build_row(request, *SHOWN_FIELDS[:-1]) for request in requests]
        return build_table(*columns, rows=rows, empty="No pending access requests.")

    elicitations.list_requests(
        cli, options, AccessRequest, _serialize_access_requests, render_requests
    )


def _show_access_request(cli: CommandContext, options: argparse.Namespace) -> None:
    _emit(cli, elicitations.get_request(cli, AccessRequest, options.id))


def _emit(cli: CommandContext, access_request: AccessRequest) -> None:
    serialized = serialize_access_request(access_request)
    names = (*SHOWN_FIELDS, "reason", "answered_by", "message", "url")
    rows = [(name, make_visible(str(serialized[name]), 2_000)) for name in names]
    cli.emit(serialized, build_table("", "", rows=[row for row in rows if row[1]], empty=""))


_CREATE_ARGUMENTS = (
    Argument("kind", "What is requested", choices=AccessRequest.Kind.values),
    Argument("NAME", "Name of the server, tool, or agent", dest="target"),
    Argument("--agent AGENT", "Agent that gets the server or tool", default=""),
    Argument("--reason REASON", "Why it is needed", required=True),
)


def _create_access_request(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.access_requests import AccessRequestSpec, create_access_request

    spec = AccessRequestSpec(
        kind=options.kind,
        target=options.target,
        reason=options.reason,
        agent=get_agent(cli, options.agent) if options.agent else None,
    )
    _emit(cli, create_access_request(cli.principal, spec))


def _cancel_access_request(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.access_requests import cancel_access_request

    access_request = elicitations.get_request(cli, AccessRequest, options.id)
    _emit(cli, cancel_access_request(cli.principal, access_request))


_MESSAGE_HELP = "Message to the requester"


def _answer(cli: CommandContext, options: argparse.Namespace, answer: str) -> None:
    from agents.access_requests import answer_access_request

    access_request = elicitations.get_request(cli, AccessRequest, options.id)
    _emit(cli, answer_access_request(cli.principal, access_request, answer, options.message))


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {elicitations.MAX_LISTED} access requests (default: pending ones)",
        _list_access_requests,
        arguments=elicitations.build_list_arguments(AccessRequest),
        examples=("access-requests list", "access-requests list --state all --json"),
    ),
    CommandVerb(
        "show",
        "Show an access request and its answer",
        _show_access_request,
        arguments=(elicitations.ID_ARGUMENT,),
        examples=("access-requests show 0198c0de-…",),
    ),
    CommandVerb(
        "create",
        "Request a server or a tool for an agent, or an agent",
        _create_access_request,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            'access-requests create server github --agent helper --reason "To read issues."',
            'access-requests create agent Support --reason "To answer customers."',
        ),
    ),
    CommandVerb(
        "cancel",
        "Cancel your own pending request",
        _cancel_access_request,
        arguments=(elicitations.ID_ARGUMENT,),
        examples=("access-requests cancel 0198c0de-…",),
    ),
    CommandVerb(
        "approve",
        "Approve a request and set up what it asks for",
        partial(_answer, answer="approve"),
        arguments=(
            elicitations.ID_ARGUMENT,
            Argument("--message MESSAGE", _MESSAGE_HELP, default=""),
        ),
        examples=("access-requests approve 0198c0de-…",),
    ),
    CommandVerb(
        "deny",
        "Deny a request with a message to the requester",
        partial(_answer, answer="deny"),
        arguments=(
            elicitations.ID_ARGUMENT,
            Argument("--message MESSAGE", _MESSAGE_HELP, default="", required=True),
        ),
        examples=('access-requests deny 0198c0de-… --message "Use the agent support."',),
    ),
)
