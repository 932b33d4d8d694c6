"""Text that the chain covers, columns copied from it.

Pure. An entry is canonical ASCII JSON, kept as text: what was hashed is what is stored. Columns
exist for searching; each is derived from the sealed facts by `columns`, on writing and again on
verifying, so a column that was changed by hand shows.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter, le
from typing import Any, Literal
from uuid import UUID

from pydantic_core import from_json

from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.ledger.types import BudgetReservation, Opening, Settlement

VERSION = 1
OPEN = "open"  # the outcome of a call that has none yet

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class EntryColumn:
    """A column copied from the sealed facts; `length` in characters cuts long texts."""

    name: str
    kind: Literal["text", "uuid", "time", "integer"]
    length: int = 0
    default: str | int | None = None


def _build_text_column(name: str, length: int = 255) -> EntryColumn:
    return EntryColumn(name, "text", length, "")


OPENED = (
    EntryColumn("id", "uuid"),
    EntryColumn("organization_id", "uuid"),
    EntryColumn("opened_at", "time"),
    _build_text_column("action", 64),
    _build_text_column("event_type", 64),
    _build_text_column("resource_type", 64),
    _build_text_column("resource_id"),
    _build_text_column("resource_name"),
    _build_text_column("actor_kind", 16),
    _build_text_column("actor_id"),
    _build_text_column("actor_label"),
    _build_text_column("decision", 16),
    _build_text_column("rule"),
    _build_text_column("code", 64),
    EntryColumn("agent_id", "uuid"),
    _build_text_column("agent_name"),
    EntryColumn("server_id", "uuid"),
    _build_text_column("server_name"),
    _build_text_column("tool_name"),
    EntryColumn("session_id", "uuid"),
    EntryColumn("parent_id", "uuid"),
)
# What closing a row sets; until then, and in a row sealed once, the opened text has the outcome.
OUTCOME = _build_text_column("outcome", 16)
CLOSED = (
    OUTCOME,
    EntryColumn("closed_at", "time"),
    EntryColumn("duration_ms", "integer"),
    EntryColumn("input_tokens", "integer", default=0),
    EntryColumn("output_tokens", "integer", default=0),
    EntryColumn("cost_microusd", "integer", default=0),
    EntryColumn("repeats", "integer", default=0),
)
COLUMNS = (*OPENED, *CLOSED)
NAMES = tuple(column.name for column in COLUMNS)
# What the two statements that write a row set. A closing without a code leaves that of the opening.
OPENING = (*OPENED, OUTCOME)
CLOSING = (*CLOSED, EntryColumn("code", "text", 64))
_DEFAULTS = tuple(column.default for column in COLUMNS)
_LENGTHS = tuple(column.length for column in COLUMNS if column.length)
_texts = itemgetter(*(place for place, column in enumerate(COLUMNS) if column.length))


def build_opening_facts(
    opening: Opening,
    at: datetime,
    *,
    outcome: str = OPEN,
    reserves: Iterable[BudgetReservation] = (),
    generation: int | None = None,
) -> dict[str, Any]:
    """Return the facts of a request or event; those that are empty are left out."""
    facts = {
        "entry": "opened",
        "v": VERSION,
        "id": str(opening.call_id),
        "organization_id": str(opening.organization_id),
        "opened_at": format_timestamp(at),
        "action": opening.action,
        "event_type": opening.event_type,
        "resource_type": opening.resource_type,
        "resource_id": opening.resource_id,
        "resource_name": opening.resource_name,
        "actor_kind": opening.actor.kind,
        "actor_id": opening.actor.id,
        "actor_label": opening.actor.label,
        "decision": opening.decision,
        "rule": opening.rule,
        "code": opening.code,
        "agent_id": _format_id(opening.agent_id),
        "agent_name": opening.agent_name,
        "server_id": _format_id(opening.server_id),
        "server_name": opening.server_name,
        "tool_name": opening.tool_name,
        "session_id": _format_id(opening.session_id),
        "parent_id": _format_id(opening.parent_id),
        "outcome": outcome,
        "details": dict(opening.details),
        "generation": generation,
        "reserves": [[reserve.key, reserve.amount] for reserve in reserves],
    }
    return _drop_empty_facts(facts)


def build_closing_facts(settlement: Settlement, at: datetime) -> dict[str, Any]:
    """Return the facts of an outcome."""
    facts = {
        "entry": "closed",
        "v": VERSION,
        "id": str(settlement.call_id),
        "closed_at": format_timestamp(at),
        "outcome": settlement.outcome,
        "code": settlement.code,
        "duration_ms": settlement.duration_ms,
        "input_tokens": settlement.input_tokens,
        "output_tokens": settlement.output_tokens,
        "cost_microusd": settlement.cost_microusd,
        "details": dict(settlement.details),
        "actuals": [list(actual) for actual in settlement.actuals],
    }
    return _drop_empty_facts(facts)


def build_repeat_facts(call_id: UUID, repeats: int, at: datetime) -> dict[str, Any]:
    """Return the facts that close a refusal which came again: how often, until when."""
    return {
        "entry": "closed",
        "v": VERSION,
        "id": str(call_id),
        "closed_at": format_timestamp(at),
        "outcome": "refused",
        "repeats": repeats,
    }


def seal(facts: Facts) -> str:
    """Return the text that is stored and hashed; raise if the facts are no JSON."""
    return to_canonical_json(facts)


def build_columns(chosen: Iterable[EntryColumn], facts: Facts) -> tuple[Any, ...]:
    """Return the values of the chosen columns: text, integers and None only."""
    values = []
    for column in chosen:
        fact = facts.get(column.name, column.default)
        values.append(_clean_text(fact, column.length) if column.length and fact else fact)
    return tuple(values)


def parse_columns(opened_text: str, closed_text: str) -> tuple[Any, ...]:
    """Return the columns that a row with these texts must have; raise ValueError if unreadable."""
    request = json.loads(opened_text)
    result = json.loads(closed_text) if closed_text else request
    if result["id"] != request["id"]:
        raise ValueError("the closing belongs to another row")
    return build_columns(COLUMNS, request | result)


def has_matching_columns(opened_text: str, closed_text: str, found: tuple[Any, ...]) -> bool:
    """Tell at a glance whether columns are those that a row with these texts must have.

    It says yes only where `columns_of` returns the same, and no wherever that takes a closer look:
    at texts that were cut or hold what isn't stored, and at what can't be read.
    """
    try:
        facts = from_json(opened_text, cache_strings="keys")
        called = facts["id"]
        if closed_text:
            result = from_json(closed_text, cache_strings="keys")
            if result["id"] != called:
                return False
            facts.update(result)
        if tuple(map(facts.get, NAMES, _DEFAULTS)) != found:
            return False
        # What is no longer than its column, and has none of these, is stored as it is.
        texts = _texts(found)
        return all(map(le, map(len, texts), _LENGTHS)) and "\x00" not in "".join(texts)
    except (ValueError, TypeError, LookupError, AttributeError):
        return False


def parse_reservations(opened_text: str) -> tuple[tuple[str, int], ...]:
    """Return what a call had reserved, for whoever settles it in place of its dead holder."""
    return tuple((key, amount) for key, amount in json.loads(opened_text).get("reserves", ()))


def format_timestamp(at: datetime) -> str:
    """Return an aware UTC time with microseconds, as it stands in sealed texts."""
    return at.isoformat(timespec="microseconds").replace("+00:00", "Z")


def _format_id(value: UUID | None) -> str | None:
    return None if value is None else str(value)


def _drop_empty_facts(facts: Facts) -> dict[str, Any]:
    """Return the facts without those that say nothing; zero and no are facts."""
    return {name: fact for name, fact in facts.items() if fact or isinstance(fact, int)}


def _clean_text(text: str, length: int) -> str:
    """Make any text storable everywhere: PostgreSQL takes no NUL, UTF-8 no lone surrogate."""
    if text.isascii():
        text = text[:length]
        return text if "\x00" not in text else text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")[:length]
