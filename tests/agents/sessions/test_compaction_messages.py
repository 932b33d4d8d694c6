"""Compaction of conversations: calls stay with their results, and nothing grows."""

from hypothesis import given
from hypothesis import strategies as st

from agents.llm.interface import (
    ToolCall,
    build_assistant_message,
    build_call_id,
    build_tool_result,
    build_user_message,
)
from agents.llm.message_order import order_messages
from agents.llm.token_estimates import estimate_tokens
from agents.sessions.compaction import (
    DIGEST_LENGTH,
    LAST_MESSAGE_LENGTH,
    CompactionMarks,
    HistoryEntry,
    compact_messages,
    plan_compaction,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=30) | st.builds(
    lambda piece, times: piece * times, st.sampled_from("aä字"), st.integers(0, 6_000)
)


@st.composite
def conversations(draw):
    """Draw a conversation of messages, turns with calls, and results."""
    entries, turn = [], 0

    def add(message, result_id=""):
        entries.append(HistoryEntry(len(entries) + 1, message, result_id))

    add(build_user_message(draw(TEXTS)))
    for _ in range(draw(st.integers(0, 12))):
        if draw(st.booleans()):
            add(build_user_message(draw(TEXTS)))
            continue
        turn += 1
        count = draw(st.integers(0, 3))
        calls = [
            ToolCall(index, "mcp_web_get", {"q": draw(TEXTS)}, "", build_call_id(turn, index))
            for index in range(count)
        ]
        add(build_assistant_message(turn, draw(TEXTS), calls))
        for call in calls:
            failed = draw(st.booleans())
            add(build_tool_result(call.id, call.name, draw(TEXTS), failed), f"id-{len(entries)}")
    return entries


def build_limit_check(limit):
    return lambda messages: estimate_tokens(messages) <= limit


def count_tokens(messages):
    return estimate_tokens(messages)


@given(conversations(), st.integers(0, 20_000))
def test_calls_stay_with_their_results_and_nothing_grows(entries, limit):
    complete = compact_messages(entries, CompactionMarks())
    assert complete == [entry.message for entry in entries]
    marks = (
        plan_compaction(entries, CompactionMarks(), build_limit_check(limit)) or CompactionMarks()
    )
    sent = compact_messages(entries, marks)
    order_messages(sent)  # raises if a result has no call
    call_ids = [
        call["id"]
        for message in sent
        if message["role"] == "assistant"
        for call in message["calls"]
    ]
    assert [message["call_id"] for message in sent if message["role"] == "tool"] == call_ids
    assert count_tokens(sent) <= count_tokens(complete)
    assert len(sent) <= len(complete)


def test_marks_of_the_previous_release_are_read():
    stored = {"told_before": 7, "results_before": 9, "longest": None}
    assert CompactionMarks.from_dict(stored) == CompactionMarks(7, 9)


@given(conversations(), st.integers(0, 20_000))
def test_compaction_is_done_once_and_reproduced_from_its_marks(entries, limit):
    marks = plan_compaction(entries, CompactionMarks(), build_limit_check(limit))
    if marks is None:
        return
    restored = CompactionMarks.from_dict(marks.to_dict())
    assert compact_messages(entries, restored) == compact_messages(entries, marks)
    assert (
        plan_compaction(
            entries, marks, build_limit_check(count_tokens(compact_messages(entries, marks)))
        )
        is None
    )


@given(conversations(), st.integers(0, 20_000), st.integers(0, 20_000))
def test_omitted_messages_stay_omitted(entries, first, second):
    earlier = (
        plan_compaction(entries, CompactionMarks(), build_limit_check(first)) or CompactionMarks()
    )
    later = plan_compaction(entries, earlier, build_limit_check(second)) or earlier
    assert later.digested_before >= earlier.digested_before
    assert later.results_before >= earlier.results_before
    assert count_tokens(compact_messages(entries, later)) <= count_tokens(
        compact_messages(entries, earlier)
    )


def build_conversation(rounds, length=4_000):
    entries = [HistoryEntry(1, build_user_message("Read everything about whales"))]
    for turn in range(1, rounds + 1):
        call = ToolCall(0, "mcp_web_get", {"page": turn}, "", build_call_id(turn, 0))
        entries.append(
            HistoryEntry(2 * turn, build_assistant_message(turn, f"Page {turn}.", [call]))
        )
        result = build_tool_result(
            call.id, call.name, f"{turn} " + "w" * length, frame={"mark": "ab"}
        )
        entries.append(HistoryEntry(2 * turn + 1, result, f"id-{turn}"))
    return entries


def test_old_results_are_omitted_first_with_how_to_read_them():
    entries = build_conversation(8)
    marks = plan_compaction(
        entries,
        CompactionMarks(),
        build_limit_check(count_tokens([item.message for item in entries]) * 3 // 4),
    )
    sent = compact_messages(entries, marks)
    assert [item["role"] for item in sent] == [item.message["role"] for item in entries]
    old, new = sent[2], sent[-1]
    assert "call read_result with result_id id-1]" in old["text"]
    assert "frame" not in old
    assert new == entries[-1].message


def test_then_the_beginning_is_summarized_and_the_last_message_kept():
    entries = build_conversation(200)
    marks = plan_compaction(entries, CompactionMarks(), build_limit_check(6_000))
    sent = compact_messages(entries, marks)
    assert count_tokens(sent) <= 6_000
    digest = sent[0]["text"]
    assert digest.endswith(
        "[The latest message of the user, in full:]\nRead everything about whales"
    )
    assert "earlier ones]" in digest
    assert len(digest) <= DIGEST_LENGTH + LAST_MESSAGE_LENGTH + 2_000
    assert sent[-1] == entries[-1].message


def test_finally_the_newest_results_are_truncated():
    entries = build_conversation(1, length=200_000)
    marks = plan_compaction(entries, CompactionMarks(), build_limit_check(2_000))
    (result,) = [
        message for message in compact_messages(entries, marks) if message["role"] == "tool"
    ]
    assert result["text"].endswith("call read_result with result_id id-1]")
    assert result["frame"] == {"mark": "ab"}


def test_without_anything_to_omit_there_is_no_note():
    assert (
        plan_compaction(
            [HistoryEntry(1, build_user_message("hi" * 50_000))],
            CompactionMarks(),
            build_limit_check(10),
        )
        is None
    )
    assert plan_compaction([], CompactionMarks(), build_limit_check(0)) is None


def test_the_latest_attachment_stays_with_its_message():
    entries = build_conversation(100)
    files = [{"sha256": "ab", "size": 400, "name": "whales.txt", "mark": "cd"}]
    entries[0] = HistoryEntry(1, entries[0].message | {"files": files})
    marks = plan_compaction(entries, CompactionMarks(), build_limit_check(4_000))
    assert compact_messages(entries, marks)[0]["files"] == files
    assert (
        count_tokens([build_user_message("x") | {"files": files}])
        == count_tokens([build_user_message("x")]) + 100
    )
