"""Calls that may have run: their code and texts, the same for every caller."""

from typing import TypeGuard

from agents.calls.snapshots import Target
from agents.calls.types import CallRequest
from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.problems import Problem
from mcp_servers.client.errors import UpstreamError
from mcp_servers.flow_labels import FlowLabel

OUTCOME_UNKNOWN_CODE = "outcome_unknown"
OUTCOME_UNKNOWN_REMEDY = format_message(
    "The call may have run, so don't repeat it before you have checked its effect."
)
PROCESS_ENDED = format_message("The process that made this call ended before the result arrived.")
UNANSWERED_CODES = (
    *("call_timeout", "server_unreachable", "server_crashed"),
    # A task that was started, and whose end isn't known.
    *("task_lost", "task_expired"),
)


def describe_unknown_outcome(cause: str) -> TranslatableMessage:
    """Return the text of a call that may have run; `cause` is a sentence."""
    return format_message(
        "It is unknown whether this call ran. {cause} The call was not repeated.", cause=cause
    )


def is_outcome_unknown(problem: Problem) -> TypeGuard[UpstreamError]:
    """Return whether the call was sent but it is unknown whether it ran."""
    if not isinstance(problem, UpstreamError) or not problem.sent:
        return False
    is_failed_server = problem.rpc_code is None and (problem.http_status or 0) >= 500
    # With a status below 500, the server refused the request.
    is_unreadable = (
        problem.code == "protocol_error" and problem.http_status is None and not problem.answered
    )
    return problem.code in UNANSWERED_CODES or is_failed_server or is_unreadable


def is_repeatable(request: CallRequest, target: Target) -> bool:
    """Return whether a second call does no more than the first one.

    Only our own label counts; everything but a tool call only reads.
    """
    return request.method != "tools/call" or FlowLabel.REPEATABLE in target.labels
