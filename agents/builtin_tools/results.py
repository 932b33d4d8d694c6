"""`read_result`: read on in a result that was too long to be shown whole."""

from typing import Any
from uuid import UUID

from agents.builtin_tools.tool import BuiltinTool, Context
from agents.evidence import labels_of
from agents.governance.flows import SEEN
from agents.models import Step, StoredResult
from bonobot.ledger.models import AuditRow, FlowCell
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from mcp_servers.labels import Label, bits, labels_in
from mcp_servers.store_labels import server_store

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


def _brings(agent_id: UUID, arguments: dict[str, Any]) -> tuple[Label, ...]:
    """Return what the call brought whose result is read: it may be longer ago than its caller's.

    What isn't known of it any more is taken to have brought all.
    """
    mine = StoredResult.objects.filter(pk=arguments["result_id"], agent=agent_id)
    stored = mine.values_list("organization_id", flat=True).first()
    if stored is None:
        return ()
    row = AuditRow.objects.filter(pk=arguments["result_id"], organization_id=stored).first()
    if row is None:
        return labels_in(SEEN)
    found = bits(labels_of(row))
    if row.server_id is not None:
        cells = FlowCell.objects.filter(pk=server_store(stored, row.server_id))
        found |= cells.values_list("labels", flat=True).first() or 0
    return labels_in(found & SEEN)


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
    brings=_brings,
)
