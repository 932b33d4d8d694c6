"""Write the audit entries of generated calls in the format of the ledger's writer, but faster.

`bonobot.ledger.audit.entry_encoding` encodes one entry for each outcome of a call. The result is a
template, which is filled in for each call, as is the line for PostgreSQL's COPY.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

from benchmarks.call_history import (
    OK,
    OTHER_OUTCOMES,
    Call,
    CallOutcome,
    Plan,
    build_ordered_id,
    iterate_calls,
)
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.audit.hash_chain import ChainTip
from bonobot.ledger.types import Actor, Opening, Settlement

COLUMNS = (
    "seq",
    "digest",
    "opened",
    "closed_seq",
    "closed_digest",
    "closed",
    *entry_encoding.COLUMN_NAMES,
)
NULL = "\\N"  # in the format of COPY
REFUSED = "refused"

Facts = dict[str, Any]


class AuditLineWriter:
    """Writes audit entries after an organization's last one; `tip` is the end of the chain."""

    def __init__(self, plan: Plan, tip: ChainTip) -> None:
        self.tip = tip
        self._plan = plan
        self._build_templates = {
            end: _build_templates(end) for end in (OK, *(end for end, _share in OTHER_OUTCOMES))
        }

    def lines(self) -> Iterator[str]:
        """Yield the lines of all calls in the format of COPY."""
        seq, digest = self.tip.seq, self.tip.digest
        for call in iterate_calls(self._plan):
            line, opened, closed = self._build_templates[call.end]
            facts = self._build_values(call)
            text = opened % facts
            digest = sha256((digest + text).encode()).hexdigest()
            seq += 1
            facts["seq"], facts["digest"], facts["opened"] = seq, digest, text
            if closed:
                facts["output"] = digest
                facts["closed"] = said = closed % facts
                digest = sha256((digest + said).encode()).hexdigest()
                seq += 1
                facts["closed_seq"], facts["closed_digest"] = seq, digest
            yield line % facts
        self.tip = ChainTip(seq, digest, self.tip.generation)

    def _build_values(self, call: Call) -> Facts:
        at, elapsed = call.at, call.took
        return {
            "organization_id": self._plan.organization_id,
            "id": build_ordered_id(at, call.drawn),
            "opened_at": entry_encoding.format_timestamp(at),
            "project": f"p{call.number}",
            "agent_id": call.agent[0],
            "agent_name": call.agent[1],
            "actor_label": call.agent[1],
            "session_id": call.session_id,
            "actor_id": call.session_id,
            "server_id": call.server[0],
            "server_name": call.server[1],
            "tool_name": call.tool,
            "resource_id": call.tool,
            "resource_name": call.tool,
            "closed_at": entry_encoding.format_timestamp(at + timedelta(milliseconds=elapsed)),
            "duration_ms": elapsed,
            "cost_microusd": elapsed % 40,
        }


def _build_templates(end: CallOutcome) -> tuple[str, str, str]:
    """Return the templates for calls with an outcome: the line, the opening, and the closing."""
    refused = end.outcome == REFUSED
    opened, request = _build_opening_template(refused=refused)
    closed, result = ("", {}) if refused else _build_closing_template(end)
    shared = dict.fromkeys(COLUMNS, "") | request | result
    blanks = {"seq", "digest", "opened", *_list_placeholders(opened)}
    if closed:
        blanks |= {"closed_seq", "closed_digest", "closed", *_list_placeholders(closed)}
    else:
        shared["closed_seq"] = None
    cells = [f"%({name})s" if name in blanks else _format_cell(shared[name]) for name in COLUMNS]
    line = "\t".join(cells)
    if "\\" in (opened + closed + line).replace(NULL, ""):
        raise ValueError("A backslash has a special meaning for COPY.")
    return line, opened, closed


def _format_cell(value: Any) -> str:
    return NULL if value is None else str(value)


def _list_placeholders(blanks: str) -> set[str]:
    return {part.partition(")s")[0] for part in blanks.split("%(")[1:]}


def _build_opening_template(*, refused: bool) -> tuple[str, Facts]:
    """Return the template of an opening, and its columns that don't differ."""
    ids = {
        name: uuid4() for name in ("id", "organization_id", "agent_id", "server_id", "session_id")
    }
    at = datetime.now(UTC)
    opening = Opening(
        call_id=ids["id"],
        organization_id=ids["organization_id"],
        action="agent_tool_call",
        event_type="call",
        resource_type="mcp_tool",
        resource_id="%(resource_id)s",
        resource_name="%(resource_name)s",
        actor=Actor("session", "%(actor_id)s", "%(actor_label)s"),
        decision="deny" if refused else "allow",
        rule="policy:agent",
        code="tool_denied" if refused else "",
        details={"arguments": {"project": "%(project)s", "query": "open"}, "via": "session"},
        agent_id=ids["agent_id"],
        agent_name="%(agent_name)s",
        server_id=ids["server_id"],
        server_name="%(server_name)s",
        tool_name="%(tool_name)s",
        session_id=ids["session_id"],
    )
    facts = entry_encoding.build_opening_facts(
        opening, at, outcome=REFUSED if refused else entry_encoding.OPEN_OUTCOME
    )
    blanks = to_canonical_json(facts).replace(entry_encoding.format_timestamp(at), "%(opened_at)s")
    for name, value in ids.items():
        blanks = blanks.replace(str(value), f"%({name})s")
    shared = entry_encoding.build_columns(entry_encoding.COLUMNS, facts)
    return blanks, dict(zip(entry_encoding.COLUMN_NAMES, shared, strict=True))


def _build_closing_template(end: CallOutcome) -> tuple[str, Facts]:
    """Return the template of a closing, and its columns that don't differ."""
    call_id, at, elapsed, cost = uuid4(), datetime.now(UTC), 987_654_321, 987_654_322
    settlement = Settlement(
        call_id=call_id,
        organization_id=uuid4(),
        outcome=end.outcome,  # type: ignore[arg-type]  # one of `OTHER_OUTCOMES`
        code=end.code,
        duration_ms=elapsed,
        details={"execution_time_ms": elapsed, "output": "%(output)s"},
        cost_microusd=cost,
    )
    facts = entry_encoding.build_closing_facts(settlement, at)
    blanks = to_canonical_json(facts).replace(entry_encoding.format_timestamp(at), "%(closed_at)s")
    for name, value in (("id", call_id), ("duration_ms", elapsed), ("cost_microusd", cost)):
        blanks = blanks.replace(str(value), f"%({name})s")
    shared = entry_encoding.build_columns(entry_encoding.CLOSING_COLUMNS, facts)
    names = [column.name for column in entry_encoding.CLOSING_COLUMNS]
    results = dict(zip(names, shared, strict=True))
    return blanks, {name: value for name, value in results.items() if name != "code" or end.code}
