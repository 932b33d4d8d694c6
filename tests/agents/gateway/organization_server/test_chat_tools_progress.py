"""Progress of a session for a waiting client: everything, each part once."""

from hypothesis import given
from hypothesis import strategies as st

from agents.gateway.organization_server.chat_tools import SessionProgress
from agents.models import Step
from agents.sessions.events import PROGRESS, REST, STATE, TEXT, SessionEvent

CALL, MODEL, NOTICE = Step.Kind.CALL, Step.Kind.MODEL, Step.Kind.NOTICE


def collect_lines(*events: SessionEvent) -> list[str]:
    return list(SessionProgress().collect_new_lines(events))


def build_call_event(state: str, **more: str) -> SessionEvent:
    return SessionEvent(CALL, {"seq": 4, "state": state, "name": "echo", **more})


@given(st.text(min_size=1), st.lists(st.integers(0, 40)))
def test_a_text_is_reported_once_however_it_arrives(text: str, cuts: list[int]) -> None:
    ends = [*sorted({min(cut, len(text)) for cut in cuts}), len(text)]
    pieces, start = [], 0
    for end in ends:
        pieces.append(SessionEvent(TEXT, {"seq": 3, "at": start, "text": text[start:end]}))
        start = end
    reader = SessionProgress()
    lines = list(reader.collect_new_lines(pieces))
    assert "".join(lines) == text
    # The complete step and repeated pieces add nothing.
    assert not list(
        reader.collect_new_lines([SessionEvent(MODEL, {"seq": 3, "text": text}), *pieces])
    )


def test_a_missed_text_is_reported_from_the_clients_position() -> None:
    reader = SessionProgress()
    assert list(
        reader.collect_new_lines([SessionEvent(TEXT, {"seq": 3, "at": 0, "text": "It "})])
    ) == ["It "]
    assert list(
        reader.collect_new_lines([SessionEvent(MODEL, {"seq": 3, "text": "It works."})])
    ) == ["works."]
    assert list(reader.collect_new_lines([SessionEvent(MODEL, {"seq": 5, "text": "And?"})])) == [
        "And?"
    ]


def test_a_call_is_reported_at_its_start_and_end() -> None:
    intent = build_call_event(Step.State.INTENT)
    assert collect_lines(intent, intent, build_call_event(Step.State.DONE)) == [
        "[calls echo]",
        "[echo: done]",
    ]
    failed = build_call_event(Step.State.FAILED, code="denied_by_policy")
    assert collect_lines(failed, failed) == ["[echo: failed, denied_by_policy]"]


def test_notices_progress_and_states_are_reported_as_lines() -> None:
    lines = collect_lines(
        SessionEvent(NOTICE, {"text": "Waiting for a person."}),
        SessionEvent(PROGRESS, {"message": "half of it"}),
        SessionEvent(PROGRESS, {}),
        SessionEvent(STATE, {"status": "waiting"}),
        SessionEvent(REST, {"status": "done"}),
    )
    assert lines == ["Waiting for a person.", "half of it", "[waiting]"]
