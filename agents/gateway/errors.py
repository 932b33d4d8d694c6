"""Convert failures to HTTP responses, MCP errors or tool results.

A request that isn't authenticated or admitted (401, 403, 429, 503) gets problem details with the
headers that say what to do.

A refused call of a listed tool gives a failed tool result with our code; a tool that isn't listed
gives the same error as a missing one. The codes are those of the REST API.
"""

from http import HTTPStatus
from typing import Any

from django.conf import settings
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS

from agents.calls.pipeline import CallOutcome
from agents.gateway.authentication import build_challenge
from agents.gateway.routes import METADATA_PATH, ROOT_PATH, GatewayAddress
from bonobot.accounts.roles import TokenScope
from bonobot.core.api.exception_handler import format_retry_after
from bonobot.core.problems import Problem

# The `_meta` key of our code and remedy.
PROBLEM_META_KEY = "bonobot/problem"
LEGACY_NOT_FOUND = -32002


def build_problem_headers(
    problem: Problem, address: GatewayAddress | None
) -> list[tuple[bytes, bytes]]:
    """Return the headers of a problem: when to retry, and for 401 and 403 how to authorize."""
    headers = []
    if retry_after := format_retry_after(problem):
        headers.append((b"retry-after", retry_after.encode("latin-1")))
    if problem.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        path = address.path if address else ROOT_PATH
        challenge = build_challenge(
            f"{settings.BONOBOT_URL}{METADATA_PATH}{path}", problem, _get_default_scope(address)
        )
        headers.append((b"www-authenticate", challenge.encode("latin-1")))
    return headers


def _get_default_scope(address: GatewayAddress | None) -> str:
    """Return the scope that a client should request at an address; blank without OAuth."""
    if not settings.BONOBOT_OAUTH or address is None:
        return ""
    return TokenScope.AGENTS if address.kind == "organization" else TokenScope.TOOLS


def build_unknown_name_error(noun: str, name: str) -> MCPError:
    """Return the error for a name that isn't listed, whether it exists or not."""
    data = {"uri": name} if noun == "resource" else None
    return MCPError(code=INVALID_PARAMS, message=f"Unknown {noun}: {name}", data=data)


def build_mcp_error(problem: Problem) -> MCPError:
    """Return a problem as a protocol error."""
    code = INVALID_PARAMS if 400 <= problem.status < 500 else INTERNAL_ERROR
    return MCPError(code=code, message=_format_problem(problem), data=_build_problem_data(problem))


def build_refusal_result(problem: Problem) -> dict[str, Any]:
    """Return a problem as a failed tool result."""
    return _build_error_result(_format_problem(problem), _build_problem_data(problem))


def has_problem(result: dict[str, Any]) -> bool:
    """Return whether a result, or that of a task, is a problem."""
    inner = result.get("result")
    parts = (result, inner if isinstance(inner, dict) else {})
    return any(PROBLEM_META_KEY in (part.get("_meta") or {}) for part in parts)


def build_failure_result(outcome: CallOutcome) -> dict[str, Any]:
    """Return an outcome without a result as a failed tool result."""
    details = {"code": outcome.code, "remedy": outcome.remedy, "call_id": str(outcome.call_id)}
    return _build_error_result(f"{outcome.text} {outcome.remedy}".strip(), details)


def build_upstream_error(outcome: CallOutcome, *, modern: bool) -> MCPError:
    """Return a server's error with the code of the client's era."""
    error = dict(outcome.error or {"code": INTERNAL_ERROR, "message": outcome.text})
    if modern and error["code"] == LEGACY_NOT_FOUND:
        error["code"] = INVALID_PARAMS
    return MCPError(code=error["code"], message=error["message"], data=error.get("data"))


def _build_error_result(text: str, details: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "_meta": {PROBLEM_META_KEY: details}}


def _format_problem(problem: Problem) -> str:
    return f"{problem} {problem.remedy}".strip()


def _build_problem_data(problem: Problem) -> dict[str, Any]:
    details: dict[str, Any] = {"code": problem.code, "rule": problem.rule, "remedy": problem.remedy}
    if problem.retry_after is not None:
        details["retry_after"] = problem.retry_after
    details |= problem.extra
    return {name: value for name, value in details.items() if value not in ("", None)}
