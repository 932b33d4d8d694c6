"""Seals a county's calls one after the other, as the ledger's writer seals them, only faster.

The texts are those of `bonobot.ledger.audit.entry_encoding`, made once for each way in which a call
can end, with blanks that are filled in for each call; so are the lines that PostgreSQL's COPY
takes.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any
from uuid import uuid4

from benchmarks.call_history import OK, OTHERWISE, Call, End, Plan, calls, ordered_id
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
NOTHING = "\\N"  # as COPY has it
REFUSED = "refused"

Facts = dict[str, Any]


class Scribe:
    """Writes the lines of the audit from an organization's tip on; `tip` is where it stands."""

    def __init__(self, plan: Plan, tip: ChainTip) -> None:
        self.tip = tip
        self._plan = plan
        self._blanks = {end: _blanks(end) for end in (OK, *(end for end, _share in OTHERWISE))}

    def lines(self) -> Iterator[str]:
        """Yield the lines of all calls, as COPY takes them."""
        seq, digest = self.tip.seq, self.tip.digest
        for call in calls(self._plan):
            line, opened, closed = self._blanks[call.end]
            facts = self._facts(call)
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

    def _facts(self, call: Call) -> Facts:
        at, took = call.at, call.took
        return {
            "organization_id": self._plan.organization_id,
            "id": ordered_id(at, call.drawn),
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
            "closed_at": entry_encoding.format_timestamp(at + timedelta(milliseconds=took)),
            "duration_ms": took,
            "cost_microusd": took % 40,
        }


def _blanks(end: End) -> tuple[str, str, str]:
    """Return a line with blanks, and those of its two sealed texts, of calls that end so."""
    refused = end.outcome == REFUSED
    opened, request = _request(refused=refused)
    closed, result = ("", {}) if refused else _result(end)
    shared = dict.fromkeys(COLUMNS, "") | request | result
    blanks = {"seq", "digest", "opened", *_named(opened)}
    if closed:
        blanks |= {"closed_seq", "closed_digest", "closed", *_named(closed)}
    else:
        shared["closed_seq"] = None
    cells = [f"%({name})s" if name in blanks else _cell(shared[name]) for name in COLUMNS]
    line = "\t".join(cells)
    if "\\" in (opened + closed + line).replace(NOTHING, ""):
        raise ValueError("COPY would take a backslash for more than itself.")
    return line, opened, closed


def _cell(value: Any) -> str:
    return NOTHING if value is None else str(value)


def _named(blanks: str) -> set[str]:
    return {part.partition(")s")[0] for part in blanks.split("%(")[1:]}


def _request(*, refused: bool) -> tuple[str, Facts]:
    """Return the text of a request with blanks, and the columns that all of them share."""
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


def _result(end: End) -> tuple[str, Facts]:
    """Return the text of an outcome with blanks, and the columns that all of them share."""
    call_id, at, took, cost = uuid4(), datetime.now(UTC), 987_654_321, 987_654_322
    settlement = Settlement(
        call_id=call_id,
        organization_id=uuid4(),
        outcome=end.outcome,  # type: ignore[arg-type]  # one of the diary's
        code=end.code,
        duration_ms=took,
        details={"execution_time_ms": took, "output": "%(output)s"},
        cost_microusd=cost,
    )
    facts = entry_encoding.build_closing_facts(settlement, at)
    blanks = to_canonical_json(facts).replace(entry_encoding.format_timestamp(at), "%(closed_at)s")
    for name, value in (("id", call_id), ("duration_ms", took), ("cost_microusd", cost)):
        blanks = blanks.replace(str(value), f"%({name})s")
    shared = entry_encoding.build_columns(entry_encoding.CLOSING_COLUMNS, facts)
    names = [column.name for column in entry_encoding.CLOSING_COLUMNS]
    found = dict(zip(names, shared, strict=True))
    return blanks, {name: value for name, value in found.items() if name != "code" or end.code}
