from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from bonobot.ledger.audit.entry_encoding import parse_columns
from bonobot.ledger.audit.hash_chain import (
    GENESIS,
    ChainTip,
    ChainVerifier,
    StoredEntry,
    compute_entry_digest,
)
from bonobot.ledger.types import Actor, Opening, Settlement
from bonobot.ledger.writer.batch_plan import build_close_item, build_open_item

AT = datetime(2026, 11, 21, 12, 0, tzinfo=UTC)
ORGANIZATION = UUID(int=1)


def build_chain(count: int, closings: Sequence[int]) -> tuple[list[StoredEntry], ChainTip]:
    """Build a valid chain of `count` rows; those in `closings` are closed in this order at the
    end."""
    tip, rows = ChainTip(), []
    for number in range(count):
        item = build_open_item(
            Opening(
                call_id=UUID(int=number + 10),
                organization_id=ORGANIZATION,
                action="agent_tool_call",
                event_type="call",
                resource_type="mcp_tool",
                resource_id=f"tool-{number}",
                actor=Actor("user", "1", "Alice"),
                decision="allow",
            ),
            AT,
        )
        tip = tip.extend(item.text)
        columns = parse_columns(item.text, "")
        rows.append(
            StoredEntry(str(item.call_id), tip.seq, tip.digest, item.text, None, "", "", columns)
        )
    for number in closings:
        row = rows[number]
        settlement = Settlement(
            call_id=UUID(row.id), organization_id=ORGANIZATION, outcome="ok", duration_ms=number
        )
        text = build_close_item(settlement, AT).text
        tip = tip.extend(text)
        rows[number] = row._replace(
            closed_seq=tip.seq,
            closed_digest=tip.digest,
            closed=text,
            columns=parse_columns(row.opened, text),
        )
    return rows, tip


def list_fault_kinds(rows: Sequence[StoredEntry], tip: ChainTip) -> set[str]:
    inspector = ChainVerifier(tip)
    for row in rows:
        inspector.verify_row(row)
    inspector.verify_end()
    return {fault.kind for fault in inspector.faults}


chains = st.integers(2, 12).flatmap(
    lambda count: st.tuples(
        st.just(count),
        st.lists(st.integers(0, count - 1), unique=True, max_size=count),
    )
)


def test_a_link_depends_on_the_text_and_the_previous_digest() -> None:
    first = compute_entry_digest(GENESIS, "{}")
    assert len(first) == 64
    assert compute_entry_digest(first, "{}") != first
    assert compute_entry_digest(GENESIS, "[]") != first


def test_an_empty_chain_is_valid() -> None:
    assert list_fault_kinds([], ChainTip()) == set()


@given(chains)
def test_a_chain_is_valid_whatever_the_order_of_closing(
    chain: tuple[int, list[int]],
) -> None:
    assert list_fault_kinds(*build_chain(*chain)) == set()


@given(chains, st.data())
def test_any_changed_character_of_a_text_or_digest_is_detected(
    chain: tuple[int, list[int]], data: st.DataObject
) -> None:
    rows, tip = build_chain(*chain)
    index = data.draw(st.integers(0, len(rows) - 1))
    name = data.draw(st.sampled_from(["opened", "digest", "closed", "closed_digest"]))
    text = getattr(rows[index], name)
    if not text:
        return
    position = data.draw(st.integers(0, len(text) - 1))
    replacement = data.draw(st.characters().filter(lambda character: character != text[position]))
    rows[index] = rows[index]._replace(
        **{name: text[:position] + replacement + text[position + 1 :]}
    )
    assert list_fault_kinds(rows, tip)


@given(chains, st.data())
def test_a_changed_column_is_detected(chain: tuple[int, list[int]], data: st.DataObject) -> None:
    rows, tip = build_chain(*chain)
    index = data.draw(st.integers(0, len(rows) - 1))
    columns = list(rows[index].columns)
    position = data.draw(st.integers(0, len(columns) - 1))
    columns[position] = "other"
    rows[index] = rows[index]._replace(columns=tuple(columns))
    assert list_fault_kinds(rows, tip) == {"columns"}


@given(chains, st.data())
def test_a_missing_entry_is_detected(chain: tuple[int, list[int]], data: st.DataObject) -> None:
    rows, tip = build_chain(*chain)
    del rows[data.draw(st.integers(0, len(rows) - 1))]
    assert list_fault_kinds(rows, tip) & {"missing", "truncated"}


@given(chains, st.data())
def test_a_duplicate_entry_is_detected(chain: tuple[int, list[int]], data: st.DataObject) -> None:
    rows, tip = build_chain(*chain)
    index = data.draw(st.integers(0, len(rows) - 1))
    rows.insert(index, rows[index])
    assert "misplaced" in list_fault_kinds(rows, tip)


@given(chains, st.data())
def test_swapped_entries_are_detected(chain: tuple[int, list[int]], data: st.DataObject) -> None:
    rows, tip = build_chain(*chain)
    first, second = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=2, max_size=2))
    if first == second:
        return
    rows[first], rows[second] = (
        rows[second]._replace(seq=rows[first].seq, digest=rows[first].digest),
        rows[first]._replace(seq=rows[second].seq, digest=rows[second].digest),
    )
    assert "altered" in list_fault_kinds(rows, tip)


@given(chains, st.data())
def test_a_truncated_chain_is_detected(chain: tuple[int, list[int]], data: st.DataObject) -> None:
    rows, tip = build_chain(*chain)
    length = data.draw(st.integers(0, len(rows) - 1))
    assert "truncated" in list_fault_kinds(rows[:length], tip) or chain[1]


def test_a_removed_closing_text_is_detected() -> None:
    rows, tip = build_chain(3, [1])
    row = rows[1]
    rows[1] = row._replace(
        closed_seq=None,
        closed_digest="",
        closed="",
        columns=parse_columns(row.opened, ""),
    )
    assert list_fault_kinds(rows, tip) == {"truncated"}


def test_a_closing_text_of_another_entry_is_detected() -> None:
    rows, tip = build_chain(3, [0, 1])
    rows[0] = rows[0]._replace(closed=rows[1].closed)
    assert {"altered", "unreadable"} <= list_fault_kinds(rows, tip)


def test_a_checkpoint_with_another_digest_is_detected() -> None:
    rows, tip = build_chain(3, [])
    assert list_fault_kinds(rows, replace(tip, digest=GENESIS)) == {"head"}


def test_a_fault_is_reported_once_and_not_for_all_later_entries() -> None:
    rows, tip = build_chain(50, [])
    rows[10] = rows[10]._replace(opened=rows[10].opened.replace("Alice", "Mallo"))
    inspector = ChainVerifier(tip)
    for row in rows:
        inspector.verify_row(row)
    inspector.verify_end()
    assert [(fault.kind, fault.seq) for fault in inspector.faults] == [
        ("columns", 11),
        ("altered", 11),
    ]


def test_the_number_of_reported_faults_is_limited() -> None:
    rows, tip = build_chain(300, [])
    inspector = ChainVerifier(tip)
    for row in rows:
        inspector.verify_row(row._replace(opened="?"))
    assert len(inspector.faults) == 100
