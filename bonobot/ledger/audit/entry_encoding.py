"""Encode audit entries as text, and copy columns from them. No I/O.

An entry is canonical ASCII JSON, stored as the text that was hashed. Columns exist for searching;
`build_columns` derives them from the facts, both for writing and for verifying, so a changed
column is detected.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from operator import itemgetter, le
from typing import Any, Literal
from uuid import UUID

from bonobot.core.text.canonical_json import format_uuid
from bonobot.ledger.types import BudgetReservation, Opening, Settlement

VERSION = 1
OPEN_OUTCOME = "open"  # the outcome of a running call

Facts = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class EntryColumn:
    """A column copied from the sealed facts; texts are truncated to `length` characters."""

    name: str
    kind: Literal["text", "uuid", "time", "integer"]
    length: int = 0
    default: str | int | None = None


def _build_text_column(name: str, length: int = 255) -> EntryColumn:
    return EntryColumn(name, "text", length, "")


OPENED_COLUMNS = (
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
# Set by closing a row; until then, the opening entry has the outcome.
OUTCOME_COLUMN = _build_text_column("outcome", 16)
CLOSED_COLUMNS = (
    OUTCOME_COLUMN,
    EntryColumn("closed_at", "time"),
    EntryColumn("duration_ms", "integer"),
    EntryColumn("input_tokens", "integer", default=0),
    EntryColumn("output_tokens", "integer", default=0),
    EntryColumn("cost_microusd", "integer", default=0),
    EntryColumn("repeats", "integer", default=0),
)


class ColumnLayout(tuple[EntryColumn, ...]):
    """The columns of a row in their order, with what is derived from them for each entry."""

    def __init__(self, columns: Iterable[EntryColumn]) -> None:
        """Derive names, defaults, and where texts, IDs and times are."""
        self.names = tuple(column.name for column in self)
        self.defaults = tuple(column.default for column in self)
        self.lengths = tuple(column.length for column in self if column.length)
        self.get_texts = itemgetter(*(index for index, column in enumerate(self) if column.length))
        self.id_positions = self._find_positions("uuid")
        self.time_positions = self._find_positions("time")

    def _find_positions(self, kind: str) -> tuple[int, ...]:
        return tuple(index for index, column in enumerate(self) if column.kind == kind)


COLUMNS = ColumnLayout((*OPENED_COLUMNS, *CLOSED_COLUMNS))
COLUMN_NAMES = COLUMNS.names
# The columns set by the INSERT and by the closing UPDATE of a row.
OPENING_COLUMNS = ColumnLayout((*OPENED_COLUMNS, OUTCOME_COLUMN))
CLOSING_COLUMNS = ColumnLayout((*CLOSED_COLUMNS, EntryColumn("code", "text", 64)))


def build_opening_facts(
    opening: Opening,
    at: datetime,
    *,
    outcome: str = OPEN_OUTCOME,
    reserves: Iterable[BudgetReservation] = (),
    generation: int | None = None,
) -> dict[str, Any]:
    """Return the non-empty facts of a request or event."""
    facts = {
        "entry": "opened",
        "v": VERSION,
        "id": format_uuid(opening.call_id),
        "organization_id": format_uuid(opening.organization_id),
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
        "agent_id": opening.agent_id and format_uuid(opening.agent_id),
        "agent_name": opening.agent_name,
        "server_id": opening.server_id and format_uuid(opening.server_id),
        "server_name": opening.server_name,
        "tool_name": opening.tool_name,
        "session_id": opening.session_id and format_uuid(opening.session_id),
        "parent_id": opening.parent_id and format_uuid(opening.parent_id),
        "outcome": outcome,
        "details": dict(opening.details),
        "generation": generation,
        "reserves": [[reserve.key, reserve.amount] for reserve in reserves],
    }
    return _drop_empty_facts(facts)


def build_closing_facts(settlement: Settlement, at: datetime) -> dict[str, Any]:
    """Return the non-empty facts of an outcome."""
    facts = {
        "entry": "closed",
        "v": VERSION,
        "id": format_uuid(settlement.call_id),
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
    """Return the facts that close a repeated refusal."""
    return {
        "entry": "closed",
        "v": VERSION,
        "id": str(call_id),
        "closed_at": format_timestamp(at),
        "outcome": "refused",
        "repeats": repeats,
    }


def build_columns(columns: ColumnLayout, facts: Facts) -> tuple[Any, ...]:
    """Return the values of these columns: only text, integers and None."""
    values = tuple(map(facts.get, columns.names, columns.defaults))
    texts = [text or "" for text in columns.get_texts(values)]
    try:
        joined = "".join(texts)
    except TypeError:  # unreadable facts
        joined = "\x00"
    if joined.isascii() and "\x00" not in joined and all(map(le, map(len, texts), columns.lengths)):
        return values  # all texts are stored unchanged
    return tuple(
        _clean_text(value, column.length) if column.length and value else value
        for column, value in zip(columns, values, strict=True)
    )


def parse_columns(opened_text: str, closed_text: str) -> tuple[Any, ...]:
    """Return the columns that a row with these texts must have; raises ValueError if unreadable."""
    opening_facts = json.loads(opened_text)
    closing_facts = json.loads(closed_text) if closed_text else opening_facts
    if closing_facts["id"] != opening_facts["id"]:
        raise ValueError("the closing belongs to another row")
    return build_columns(COLUMNS, opening_facts | closing_facts)


def has_matching_columns(opened_text: str, closed_text: str, columns: tuple[Any, ...]) -> bool:
    """Return whether the columns match these texts; a fast check.

    True only if `parse_columns` would return the same. False if that needs a closer look: for
    truncated or cleaned texts, and for unreadable ones.
    """
    from pydantic_core import from_json  # only checks of the chain need it

    try:
        facts = from_json(opened_text, cache_strings="keys")
        entry_id = facts["id"]
        if closed_text:
            closing_facts = from_json(closed_text, cache_strings="keys")
            if closing_facts["id"] != entry_id:
                return False
            facts.update(closing_facts)
        if tuple(map(facts.get, COLUMN_NAMES, COLUMNS.defaults)) != columns:
            return False
        # Texts that fit their column and have no NUL are stored unchanged.
        texts = COLUMNS.get_texts(columns)
        return all(map(le, map(len, texts), COLUMNS.lengths)) and "\x00" not in "".join(texts)
    except (ValueError, TypeError, LookupError, AttributeError):
        return False


def parse_reservations(opened_text: str) -> tuple[tuple[str, int], ...]:
    """Return the (key, amount) pairs that a call reserved."""
    return tuple((key, amount) for key, amount in json.loads(opened_text).get("reserves", ()))


def format_timestamp(at: datetime) -> str:
    """Return an aware UTC time with microseconds, as used in sealed texts."""
    # As `isoformat`, in a third of the time.
    return (
        f"{at.year:04}-{at.month:02}-{at.day:02}"
        f"T{at.hour:02}:{at.minute:02}:{at.second:02}.{at.microsecond:06}Z"
    )


def _drop_empty_facts(facts: Facts) -> dict[str, Any]:
    """Return the facts without empty ones; 0 and False are kept."""
    return {name: fact for name, fact in facts.items() if fact or isinstance(fact, int)}


def _clean_text(text: str, length: int) -> str:
    """Return a storable text: PostgreSQL doesn't allow NUL, UTF-8 no lone surrogates."""
    if text.isascii():
        text = text[:length]
        return text if "\x00" not in text else text.replace("\x00", "\N{REPLACEMENT CHARACTER}")
    text = text.encode("utf-8", "replace").decode("utf-8")
    return text.replace("\x00", "\N{REPLACEMENT CHARACTER}")[:length]
