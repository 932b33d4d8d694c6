"""`read_result`: read on in a result that was too long to be shown whole."""

from typing import Any

from agents.builtin_tools.tool import BuiltinTool, Context
from agents.models import Step, StoredResult
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from mcp_servers.labels import Label

CHUNK = 32_768


async def _run(context: Context, arguments: dict[str, Any]) -> str:
    return await runtime().orm(_read, context, arguments)


def _read(context: Context, arguments: dict[str, Any]) -> str:
    """Return a piece of the agent's own stored result of this session; others don't exist for it.

    A result of another session would bring what was read there past the flow labels of this one.
    """
    mine = StoredResult.objects.for_organization(context.organization_id).filter(
        agent=context.agent_id, session_id=context.session_id
    )
    found = mine.filter(pk=arguments["result_id"]).values_list("text", flat=True).first()
    if found is None and (found := _in_steps(context, arguments["result_id"])) is None:
        raise NotFound(
            say("There is no stored result {result_id!r}.", result_id=arguments["result_id"]),
            field="result_id",
            remedy="Use the id that stands at the end of the cut result.",
        )
    start = arguments.get("offset", 0)
    piece = found[start : start + CHUNK]
    end = start + len(piece)
    return f"{piece}\n[characters {start} to {end} of {len(found)}]"


def _in_steps(context: Context, result_id: str) -> str | None:
    """Return a result that was short enough for its step, and was left out later."""
    if context.session_id is None:
        return None
    steps = Step.objects.filter(
        session_id=context.session_id, kind=Step.Kind.CALL, call_id=result_id
    ).exclude(state=Step.State.INTENT)
    payload = steps.values_list("payload", flat=True).first()
    return payload.get("text") if payload else None


READ_RESULT = BuiltinTool(
    name="read_result",
    description=say("Read on in a tool result that was cut or left out because it was too long."),
    input_schema={
        "type": "object",
        "properties": {
            "result_id": {"type": "string", "format": "uuid", "pattern": "^[0-9a-fA-F-]{36}$"},
            "offset": {"type": "integer", "minimum": 0, "description": "First character."},
        },
        "required": ["result_id"],
        "additionalProperties": False,
    },
    run=_run,
    labels=(Label.REPEATABLE,),
)
