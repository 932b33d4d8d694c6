"""How the offline model chooses a tool and its arguments for a message in words."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.llm.interface import ToolSpec
from agents.llm.offline.choose_tool import choose_tools, find_values
from tests.agents.llm.offline import tools

ALL = tools.load_tools()

ONE_CALL: list[tuple[str, str, dict[str, Any]]] = [
    ("What time is it in Asia/Tokyo?", "get_current_time", {"timezone": "Asia/Tokyo"}),
    ("what's the time in New York", "get_current_time", {"timezone": "America/New_York"}),
    ("I'm in Tokyo. What time is it?", "get_current_time", {"timezone": "Asia/Tokyo"}),
    (
        "Convert the time 14:30 from Europe/Berlin to America/New_York",
        "convert_time",
        {
            "source_timezone": "Europe/Berlin",
            "time": "14:30",
            "target_timezone": "America/New_York",
        },
    ),
    (
        "What is 14:30 in Europe/Berlin in Asia/Tokyo?",
        "convert_time",
        {"source_timezone": "Europe/Berlin", "time": "14:30", "target_timezone": "Asia/Tokyo"},
    ),
    ("show the git log of /some/path", "git_log", {"repo_path": "/some/path"}),
    ("git status of /repo", "git_status", {"repo_path": "/repo"}),
    ("Reset /repo", "git_reset", {"repo_path": "/repo"}),
    ('git commit "Fix it" in /r', "git_commit", {"repo_path": "/r", "message": "Fix it"}),
    ("Fetch https://example.com", "fetch", {"url": "https://example.com"}),
    ("echo hello world", "echo", {"message": "hello world"}),
    ('Please echo "a and b, then c"', "echo", {"message": "a and b, then c"}),
    ("what is the sum of 2 and 3.5?", "get_sum", {"a": 2, "b": 3.5}),
    ("show me the tiny image", "get_tiny_image", {}),
    ("search for cats and dogs", "search", {"query": "cats and dogs"}),
    ("read the file /etc/hosts", "read_file", {"path": "/etc/hosts"}),
    ("delete the file /tmp/x", "delete_file", {"path": "/tmp/x"}),
]


@pytest.mark.parametrize(("text", "name", "arguments"), ONE_CALL, ids=[c[0] for c in ONE_CALL])
def test_a_clear_message_is_one_call(text: str, name: str, arguments: dict[str, Any]) -> None:
    [choice] = choose_tools(text, ALL)
    assert (choice.tool.name, choice.arguments) == (tools.get_tool(name).name, (arguments,))
    assert choice.missing == ()


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "Hello, how are you?",
        "Tell me a joke",
        "thanks!",
        "Write a poem about time",
        "What is the capital of France?",
        "How many stars are in the sky?",
        "My friend lives in Berlin and loves his cat",
        "42",
        "",
    ],
)
def test_a_message_that_asks_for_no_tool_calls_none(text: str) -> None:
    assert choose_tools(text, ALL) == []


def test_each_value_is_a_call_of_a_tool_that_only_reads() -> None:
    [choice] = choose_tools("What time is it in Tokyo and Berlin?", ALL)
    assert choice.arguments == ({"timezone": "Asia/Tokyo"}, {"timezone": "Europe/Berlin"})
    [choice] = choose_tools("delete the file /a and /b", ALL)
    assert choice.arguments == ({"path": "/a"},)


def test_a_tool_that_changes_something_needs_its_verb() -> None:
    changing = [tools.get_tool("delete_file"), tools.get_tool("git_reset")]
    for text in ("the file /tmp/x", "show the file /tmp/x", "git changes of /repo"):
        assert choose_tools(text, changing) == []


def test_what_a_message_lacks_is_missing() -> None:
    [choice] = choose_tools("show the git log", ALL)
    assert (choice.tool.name, choice.missing) == ("mcp_git_git_log", ("repo_path",))


def test_tools_that_match_equally_are_all_returned() -> None:
    names = [choice.tool.name for choice in choose_tools("tell me about git", ALL)]
    assert len(names) > 3
    assert all("git" in name for name in names)


def test_a_parameter_with_choices_takes_one_of_them() -> None:
    schema = {"properties": {"unit": {"enum": ["metric", "imperial"]}}, "required": ["unit"]}
    [choice] = choose_tools("the weather in imperial units", [ToolSpec("weather", "", schema)])
    assert choice.arguments == ({"unit": "imperial"},)


VALUES = [
    ("in Asia/Tokyo and New York", [("timezone", "Asia/Tokyo"), ("timezone", "America/New_York")]),
    ("tokyo time", []),
    ("at 14:30, not 25:99 or 14:305", [("time", "14:30")]),
    ("(see https://a.b/c?d=e#f).", [("url", "https://a.b/c?d=e#f")]),
    ("/etc/hosts, ~/x and ./y.", [("path", p) for p in ("/etc/hosts", "~/x", "./y")]),
    ("-5 and 2.5", [("number", -5), ("number", 2.5)]),
    ("v1.2.3 x86", []),
    ("say “hi” or `x`", [("quoted", "hi"), ("quoted", "x")]),
    ("don't, can't", []),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=[text for text, _ in VALUES])
def test_values_are_found_with_their_kinds(text: str, expected: list[tuple[str, object]]) -> None:
    assert [(match.kind, match.value) for match in find_values(text)] == expected


@given(st.text(max_size=300))
def test_found_values_are_within_the_text_and_dont_overlap(text: str) -> None:
    values = find_values(text)
    assert all(0 <= match.start < match.end <= len(text) for match in values)
    assert all(first.end <= second.start for first, second in pairwise(values))
