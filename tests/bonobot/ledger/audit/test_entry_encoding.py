import json
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.audit import entry_encoding
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Actor, Admission, BudgetReservation, Settlement
from bonobot.ledger.writer.batch_plan import build_close_item, build_open_item
from tests.bonobot.ledger.factories import opening_of

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ORGANIZATION = UUID(int=1)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values, max_size=3), st.text(), st.text())
def test_columns_are_the_same_from_the_entry_and_from_its_hashed_text(
    details: dict[str, Any], name: str, label: str
) -> None:
    item = build_open_item(
        opening_of(ORGANIZATION, details=details, tool_name=name, actor=Actor("user", "1", label)),
        AT,
    )
    assert item.text.isascii()
    assert entry_encoding.parse_columns(item.text, "")[: len(item.columns)] == item.columns
    assert json.loads(item.text).get("details", {}) == details


def corrupt(data: st.DataObject, text: str) -> str:
    """Return a text with a part replaced."""
    start, length = data.draw(st.integers(0, len(text) - 1)), data.draw(st.integers(0, 8))
    pieces = st.sampled_from(
        ['"', "\\u0000", "\\ud800", "é", "01", "NaN", "1.0", "{", "\ufeff", "\n"]
    )
    return text[:start] + data.draw(st.text(max_size=3) | pieces) + text[start + length :]


@given(
    st.text(st.characters(categories=None), max_size=400),
    st.dictionaries(st.text(), json_values, max_size=3),
    st.booleans(),
    st.data(),
)
def test_the_quick_check_agrees_with_the_hashed_texts(
    name: str, details: dict[str, Any], is_closed: bool, data: st.DataObject
) -> None:
    opening = opening_of(ORGANIZATION, details=details, tool_name=name)
    texts = [build_open_item(opening, AT).text, ""]
    if is_closed:
        settlement = Settlement(
            call_id=opening.call_id,
            organization_id=ORGANIZATION,
            outcome="ok",
            duration_ms=1,
            details=details,
        )
        texts[1] = build_close_item(settlement, AT).text
    parsed = entry_encoding.parse_columns(*texts)
    is_plain = name.isprintable() and name.isascii() and len(name) <= 255
    assert entry_encoding.has_matching_columns(*texts, parsed) or not is_plain
    # Corrupted texts or columns: the quick check never accepts what the full check rejects.
    index = data.draw(st.sampled_from([0, 1] if is_closed else [0]))
    texts[index] = corrupt(data, texts[index])
    columns = list(parsed)
    if data.draw(st.booleans()):
        columns[data.draw(st.integers(0, len(columns) - 1))] = data.draw(json_values)
    if entry_encoding.has_matching_columns(*texts, tuple(columns)):
        assert entry_encoding.parse_columns(*texts) == tuple(columns)


@pytest.mark.parametrize("name", ["a" * 256, "a\x00b"])
def test_a_column_that_is_truncated_differently_doesnt_match(name: str) -> None:
    text = build_open_item(opening_of(ORGANIZATION, tool_name=name), AT).text
    columns = dict(
        zip(entry_encoding.COLUMN_NAMES, entry_encoding.parse_columns(text, ""), strict=True)
    )
    assert not entry_encoding.has_matching_columns(
        text, "", tuple((columns | {"tool_name": name}).values())
    )


@given(st.text(st.characters(categories=None), max_size=400))
def test_any_text_fits_its_column_on_every_database(name: str) -> None:
    item = build_open_item(opening_of(ORGANIZATION, tool_name=name), AT)
    stored = dict(zip(entry_encoding.COLUMN_NAMES, item.columns, strict=False))["tool_name"]
    assert len(stored) <= 255
    assert "\x00" not in stored
    stored.encode()


def test_the_encoded_columns_are_those_of_the_model() -> None:
    fields = {field.name: field for field in AuditRow._meta.get_fields()}
    lengths = {
        column.name: column.length for column in entry_encoding.COLUMNS if column.kind == "text"
    }
    assert lengths == {name: fields[name].max_length for name in lengths}  # type: ignore[union-attr]
    chain_columns = {"seq", "digest", "opened", "closed_seq", "closed_digest", "closed"}
    assert set(entry_encoding.COLUMN_NAMES) | chain_columns == set(fields)


def test_the_decision_is_in_the_hashed_text() -> None:
    reserve = BudgetReservation("budget:x", 10, 7)
    admission = Admission(opening_of(ORGANIZATION), (reserve,))
    item = build_open_item(admission.opening, AT, admission=admission, generation=4)
    fields = json.loads(item.text)
    assert fields["generation"] == 4
    assert fields["opened_at"] == "2026-11-21T12:00:00.000000Z"
    assert fields["outcome"] == "open"
    assert entry_encoding.parse_reservations(item.text) == (("budget:x", 7),)


def test_details_that_arent_json_are_refused_immediately() -> None:
    with pytest.raises(ValueError, match="JSON"):
        build_open_item(opening_of(ORGANIZATION, details={"at": AT}), AT)


def test_a_closing_text_belongs_to_its_entry() -> None:
    opened = build_open_item(opening_of(ORGANIZATION), AT)
    settlement = Settlement(
        call_id=UUID(int=5), organization_id=ORGANIZATION, outcome="ok", duration_ms=1
    )
    with pytest.raises(ValueError, match="another row"):
        entry_encoding.parse_columns(opened.text, build_close_item(settlement, AT).text)
