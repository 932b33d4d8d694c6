"""Differences between two conversations: pure, so properties hold for all of them."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agents.evaluation.transcripts import (
    MAX_COMPARED_LENGTH,
    NOT_RECORDED,
    RecordedCall,
    RecordedTurn,
    Transcript,
    TranscriptEntry,
    build_text_diff,
    compare_transcripts,
    match_calls,
)

CALLS = st.builds(
    RecordedCall,
    tool=st.sampled_from(["look", "write"]),
    arguments=st.none() | st.fixed_dictionaries({"n": st.integers(0, 2)}),
    text=st.sampled_from(["", "found"]),
    verdict=st.sampled_from(["allow", "ask", "deny"]),
    code=st.sampled_from(["", "tool_error"]),
)
TURNS = st.builds(
    RecordedTurn, text=st.text("ab\n", max_size=6), calls=st.lists(CALLS, max_size=3).map(tuple)
)
EXCHANGES = st.builds(
    TranscriptEntry,
    message=st.just({"text": "Hello"}),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    code=st.sampled_from(["", "turns_exhausted"]),
)
CONVERSATIONS = st.lists(EXCHANGES, max_size=3).map(lambda found: Transcript(tuple(found)))


@given(CONVERSATIONS)
def test_a_transcript_equals_itself_also_after_json(one):
    assert compare_transcripts(one, one) == []
    assert Transcript.from_dict(one.to_dict()) == one


@given(EXCHANGES, EXCHANGES)
def test_each_call_is_paired_at_most_once(was, would):
    found = match_calls(was.calls, would.calls)
    before = [old for old, _ in (*found.same, *found.altered)] + list(found.missing)
    after = [new for _, new in (*found.same, *found.altered)] + list(found.added)
    assert len(before) == len(was.calls)
    assert len(after) == len(would.calls)
    assert {id(call) for _, call in before} == {id(call) for _, call in was.calls}
    alone = {call.tool for _, call in found.missing} & {call.tool for _, call in found.added}
    assert not alone, "what is missing and added under one name has changed arguments"


@given(CONVERSATIONS, CONVERSATIONS)
def test_added_and_missing_are_symmetric(one, other):
    there, back = compare_transcripts(one, other), compare_transcripts(other, one)

    def count(found, kind):
        return sum(difference.kind == kind for difference in found)

    assert count(there, "call_added") == count(back, "call_missing")
    for kind in ("arguments_changed", "answer_changed", "ending_changed"):
        assert count(there, kind) == count(back, kind)


def told(*turns):
    return Transcript((TranscriptEntry({"text": "Hello"}, turns),))


def test_differences_have_the_old_and_new_value():
    look = RecordedCall("look", {"n": 1}, "one")
    before = told(
        RecordedTurn("", (look, RecordedCall("write", {}))), RecordedTurn("It is one.\nDone.")
    )
    other = replace(look, arguments={"n": 2}, code=NOT_RECORDED, ok=False)
    denied = RecordedCall("write", {}, verdict="deny", rule="agent:deny", code="denied_by_policy")
    added = RecordedCall("send", {"to": "x"}, code=NOT_RECORDED)
    after = told(
        RecordedTurn("", (other,)),
        RecordedTurn("", (denied, added)),
        RecordedTurn("It is two.\nDone."),
    )
    changed, decided, new, answer = compare_transcripts(before, after)
    assert (changed.kind, changed.before, changed.after) == (
        "arguments_changed",
        '{"n":1}',
        '{"n":2}',
    )
    assert changed.code == NOT_RECORDED
    assert (decided.kind, decided.turn) == ("decision_changed", 2)
    assert (decided.before, decided.after, decided.rule) == ("allow", "deny", "agent:deny")
    assert (new.kind, new.tool, new.code) == ("call_added", "send", NOT_RECORDED)
    assert answer.diff == ("@@ -1,2 +1,2 @@", "-It is one.", "+It is two.", " Done.")


def test_a_missing_result_is_a_difference_and_a_moved_call_isnt():
    look = RecordedCall("look", {"n": 1}, "one")
    gone = replace(look, code=NOT_RECORDED)
    once, twice = (
        told(RecordedTurn("", (look, look))),
        told(RecordedTurn("", (look,)), RecordedTurn("", (gone,))),
    )
    assert [one.kind for one in compare_transcripts(once, twice)] == ["result_missing"]
    assert (
        compare_transcripts(once, told(RecordedTurn("", (look,)), RecordedTurn("", (look,)))) == []
    )


def test_long_texts_are_compared_by_their_size():
    assert build_text_diff("a" * MAX_COMPARED_LENGTH, "b") == (
        "-65,536 characters",
        "+1 characters",
    )
