"""Failures as MCP errors or tool results.

A tool that is listed and refused answers as a tool that failed, with our code; one that isn't
listed answers like one that doesn't exist. The codes are those of REST.
"""

from typing import Any

from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS

from agents.calls.pipeline import CallOutcome
from bonobot.core.problems import Problem

# Where a result tells our code and what to do next.
PROBLEM = "bonobot/problem"
NOT_FOUND_BEFORE = -32002


def build_unknown_name_error(noun: str, name: str) -> MCPError:
    """Return the error of a name that isn't listed here, whether it exists or not."""
    data = {"uri": name} if noun == "resource" else None
    return MCPError(code=INVALID_PARAMS, message=f"Unknown {noun}: {name}", data=data)


def build_mcp_error(problem: Problem) -> MCPError:
    """Return a problem as an error of the protocol."""
    code = INVALID_PARAMS if 400 <= problem.status < 500 else INTERNAL_ERROR
    return MCPError(code=code, message=_format_problem(problem), data=_build_problem_data(problem))


def build_refusal_result(problem: Problem) -> dict[str, Any]:
    """Return a problem as the result of a tool that failed."""
    return _build_error_result(_format_problem(problem), _build_problem_data(problem))


def build_failure_result(outcome: CallOutcome) -> dict[str, Any]:
    """Return an outcome without a result as the result of a tool that failed."""
    told = {"code": outcome.code, "remedy": outcome.remedy, "call_id": str(outcome.call_id)}
    return _build_error_result(f"{outcome.text} {outcome.remedy}".strip(), told)


def build_upstream_error(outcome: CallOutcome, *, modern: bool) -> MCPError:
    """Return the error that a server answered with, as the client's era has it."""
    error = dict(outcome.error or {"code": INTERNAL_ERROR, "message": outcome.text})
    if modern and error["code"] == NOT_FOUND_BEFORE:
        error["code"] = INVALID_PARAMS
    return MCPError(code=error["code"], message=error["message"], data=error.get("data"))


def _build_error_result(text: str, told: dict[str, Any]) -> dict[str, Any]:
    content = [{"type": "text", "text": text}]
    return {"content": content, "isError": True, "_meta": {PROBLEM: told}}


def _format_problem(problem: Problem) -> str:
    return f"{problem} {problem.remedy}".strip()


def _build_problem_data(problem: Problem) -> dict[str, Any]:
    told: dict[str, Any] = {"code": problem.code, "rule": problem.rule, "remedy": problem.remedy}
    if problem.retry_after is not None:
        told["retry_after"] = problem.retry_after
    told |= problem.extra
    return {name: value for name, value in told.items() if value not in ("", None)}
