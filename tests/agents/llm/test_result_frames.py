"""Frames around results, which no text inside can close."""

from hypothesis import given
from hypothesis import strategies as st

from agents.llm.result_frames import apply_frame, build_frame


def build_test_frame(**findings):
    return build_frame("github", "list_issues", flagged={}, sanitized={}) | findings


def test_text_is_between_two_lines_with_the_marker():
    frame = build_test_frame()
    first, *inside, last = apply_frame("one\ntwo", frame).splitlines()
    assert first == f"[data {frame['mark']} from github list_issues]"
    assert inside == ["one", "two"]
    assert last == f"[end of data {frame['mark']}]"


def test_each_result_has_its_own_unguessable_marker():
    marks = {build_test_frame()["mark"] for _ in range(100)}
    assert len(marks) == 100
    assert {len(mark) for mark in marks} == {16}


@given(st.text())
def test_text_of_a_server_cant_leave_its_frame(text):
    frame = build_test_frame()
    framed = apply_frame(text, frame)
    assert framed.count(f"[end of data {frame['mark']}]") == 1
    assert framed.endswith(f"\n[end of data {frame['mark']}]")
    assert f"\n{text}\n" in framed


@given(st.text(), st.text())
def test_a_tool_name_cant_close_the_marker_line(server, tool):
    frame = build_frame(server, tool, flagged={}, sanitized={})
    first = apply_frame("x", frame).split("\nx\n")[0]
    assert first.count("]") == first.count("[") == 1
    assert len(first) < 160


def test_findings_are_in_the_marker_line():
    frame = build_test_frame(flagged={"override_rules": 2}, sanitized={"remote_image": 1})
    first = apply_frame("text", frame).splitlines()[0]
    assert "override_rules ×2" in first
    assert "remote_image ×1" in first


def test_our_own_messages_have_no_frame():
    assert apply_frame("Call denied.", None) == "Call denied."
