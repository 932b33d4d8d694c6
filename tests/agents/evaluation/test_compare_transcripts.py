"""Differences between two transcripts, mostly as properties of generated ones."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from agents.evaluation.compare_transcripts import (
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
ENTRIES = st.builds(
    TranscriptEntry,
    message=st.just({"text": "Hello"}),
    turns=st.lists(TURNS, max_size=3).map(tuple),
    code=st.sampled_from(["", "turns_exhausted"]),
)
TRANSCRIPTS = st.lists(ENTRIES, max_size=3).map(lambda entries: Transcript(tuple(entries)))


@given(TRANSCRIPTS)
def test_a_transcript_equals_itself_after_json(transcript):
    assert compare_transcripts(transcript, transcript) == []
    assert Transcript.from_dict(transcript.to_dict()) == transcript


@given(ENTRIES, ENTRIES)
def test_each_call_is_matched_at_most_once(recorded, replayed):
    matches = match_calls(recorded.calls, replayed.calls)
    before = [old for old, _ in (*matches.same, *matches.altered)] + list(matches.missing)
    after = [new for _, new in (*matches.same, *matches.altered)] + list(matches.added)
    assert len(before) == len(recorded.calls)
    assert len(after) == len(replayed.calls)
    assert {id(call) for _, call in before} == {id(call) for _, call in recorded.calls}
    unpaired = {call.tool for _, call in matches.missing} & {call.tool for _, call in matches.added}
    assert not unpaired, "a missing and an added call of one tool are one changed call"


@given(TRANSCRIPTS, TRANSCRIPTS)
def test_added_and_missing_are_symmetric(transcript, other_transcript):
    forward, backward = (
        compare_transcripts(transcript, other_transcript),
        compare_transcripts(other_transcript, transcript),
    )

    def count(differences, kind):
        return sum(difference.kind == kind for difference in differences)

    assert count(forward, "call_added") == count(backward, "call_missing")
    for kind in ("arguments_changed", "answer_changed", "ending_changed"):
        assert count(forward, kind) == count(backward, kind)


def build_transcript(*turns):
    return Transcript((TranscriptEntry({"text": "Hello"}, turns),))


def test_differences_have_the_old_and_new_value():
    look = RecordedCall("look", {"n": 1}, "one")
    before = build_transcript(
        RecordedTurn("", (look, RecordedCall("write", {}))), RecordedTurn("It is one.\nDone.")
    )
    altered = replace(look, arguments={"n": 2}, code=NOT_RECORDED, ok=False)
    denied = RecordedCall("write", {}, verdict="deny", rule="agent:deny", code="denied_by_policy")
    added = RecordedCall("send", {"to": "x"}, code=NOT_RECORDED)
    after = build_transcript(
        RecordedTurn("", (altered,)),
        RecordedTurn("", (denied, added)),
        RecordedTurn("It is two.\nDone."),
    )
    changed, decision, new, answer = compare_transcripts(before, after)
    assert (changed.kind, changed.before, changed.after) == (
        "arguments_changed",
        '{"n":1}',
        '{"n":2}',
    )
    assert changed.code == NOT_RECORDED
    assert (decision.kind, decision.turn) == ("decision_changed", 2)
    assert (decision.before, decision.after, decision.rule) == ("allow", "deny", "agent:deny")
    assert (new.kind, new.tool, new.code) == ("call_added", "send", NOT_RECORDED)
    assert answer.diff == ("@@ -1,2 +1,2 @@", "-It is one.", "+It is two.", " Done.")


def test_a_missing_result_is_a_difference_but_a_moved_call_isnt():
    look = RecordedCall("look", {"n": 1}, "one")
    missing = replace(look, code=NOT_RECORDED)
    once, twice = (
        build_transcript(RecordedTurn("", (look, look))),
        build_transcript(RecordedTurn("", (look,)), RecordedTurn("", (missing,))),
    )
    assert [difference.kind for difference in compare_transcripts(once, twice)] == [
        "result_missing"
    ]
    assert (
        compare_transcripts(
            once, build_transcript(RecordedTurn("", (look,)), RecordedTurn("", (look,)))
        )
        == []
    )


def test_long_texts_are_compared_by_their_size():
    assert build_text_diff("a" * MAX_COMPARED_LENGTH, "b") == (
        "-65,536 characters",
        "+1 characters",
    )
