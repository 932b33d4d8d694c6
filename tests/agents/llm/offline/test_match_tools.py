"""How the offline model chooses tools and arguments for a message."""

from typing import Any

import pytest

from agents.llm.interface import ToolSpec
from agents.llm.offline.match_tools import EarlierCalls, extract_values, find_best_match
from tests.agents.llm.offline import tools

ALL = tools.load_tools()
TIME = tools.load_tools("time")

ONE_CALL: list[tuple[str, str, dict[str, Any]]] = [
    ("What time is it in Asia/Tokyo?", "get_current_time", {"timezone": "Asia/Tokyo"}),
    ("what's the time in New York", "get_current_time", {"timezone": "America/New_York"}),
    ("What time is it?", "get_current_time", {"timezone": "Etc/UTC"}),
    ("I'm in Tokyo. What time is it?", "get_current_time", {"timezone": "Asia/Tokyo"}),
    (
        "Convert 14:30 from Europe/Berlin to America/New_York",
        "convert_time",
        {
            "source_timezone": "Europe/Berlin",
            "time": "14:30",
            "target_timezone": "America/New_York",
        },
    ),
    (
        "convert 2:30 pm to Tokyo time",
        "convert_time",
        {"source_timezone": "Etc/UTC", "time": "14:30", "target_timezone": "Asia/Tokyo"},
    ),
    ("show the git log of /some/path", "git_log", {"repo_path": "/some/path"}),
    ("git status of /repo", "git_status", {"repo_path": "/repo"}),
    ("Reset /repo", "git_reset", {"repo_path": "/repo"}),
    ('git commit "Fix it" in /r', "git_commit", {"repo_path": "/r", "message": "Fix it"}),
    ("Fetch https://example.com", "fetch", {"url": "https://example.com"}),
    (
        "Fetch https://example.com, max_length: 200",
        "fetch",
        {"url": "https://example.com", "max_length": 200},
    ),
    ("echo hello world", "echo", {"message": "hello world"}),
    ('Please echo "a and b, then c"', "echo", {"message": "a and b, then c"}),
    ("what is the sum of 2 and 3.5?", "get_sum", {"a": 2, "b": 3.5}),
    ("show me the tiny image", "get_tiny_image", {}),
    ("search for cats and dogs", "search", {"query": "cats and dogs"}),
    ("read the file /etc/hosts", "read_file", {"path": "/etc/hosts"}),
    ("delete the file /tmp/x", "delete_file", {"path": "/tmp/x"}),
    ("weather forecast for New York, please", "get_forecast", {"city": "New York"}),
]


def list_calls(
    text: str, available_tools: list[ToolSpec], earlier: EarlierCalls | None = None
) -> list[tuple[str, dict[str, Any]]]:
    match, _ = find_best_match(text, available_tools, earlier or EarlierCalls())
    return [] if match is None or match.missing else match.calls


@pytest.mark.parametrize(("text", "name", "arguments"), ONE_CALL, ids=[c[0] for c in ONE_CALL])
def test_a_message_becomes_one_call(text: str, name: str, arguments: dict[str, Any]) -> None:
    assert list_calls(text, ALL) == [(tools.get_tool(name).name, arguments)]


@pytest.mark.parametrize(
    "text",
    [
        "hello",
        "Hello, how are you?",
        "Tell me a joke",
        "Write a poem about time",
        "What is the capital of France?",
        "My friend lives in Berlin and loves his cat",
        "42",
        "",
    ],
)
@pytest.mark.parametrize("available_tools", [ALL, TIME], ids=["all", "time"])
def test_a_message_that_matches_no_tool_calls_none(
    text: str, available_tools: list[ToolSpec]
) -> None:
    assert list_calls(text, available_tools) == []


def test_each_time_zone_of_a_message_becomes_a_call() -> None:
    name = "mcp_time_get_current_time"
    assert list_calls("What time is it in Tokyo and Berlin?", ALL) == [
        (name, {"timezone": "Asia/Tokyo"}),
        (name, {"timezone": "Europe/Berlin"}),
    ]


def test_a_bare_value_is_passed_to_the_last_tool() -> None:
    assert list_calls("and in Berlin?", ALL) == []
    name = "mcp_time_get_current_time"
    earlier = EarlierCalls(recent_tools=frozenset({name}))
    assert list_calls("and in Berlin?", ALL, earlier) == [(name, {"timezone": "Europe/Berlin"})]


def test_a_destructive_tool_isnt_called_for_each_value() -> None:
    assert list_calls("delete the file /a and /b", ALL) == [
        (tools.get_tool("delete_file").name, {"path": "/a"})
    ]


@pytest.mark.parametrize(
    "text", ["the file /tmp/x", "show the file /tmp/x", "git changes of /repo"]
)
def test_a_destructive_tool_needs_an_explicit_request(text: str) -> None:
    assert list_calls(text, [tools.get_tool("delete_file"), tools.get_tool("git_reset")]) == []


def test_missing_arguments_are_taken_from_earlier_calls_or_reported() -> None:
    match, _ = find_best_match("git log", ALL, EarlierCalls())
    assert match is not None
    assert (match.tool.name, match.missing) == ("mcp_git_git_log", ("repo_path",))
    earlier = EarlierCalls({"repo_path": "/used"})
    assert list_calls("git log", ALL, earlier) == [("mcp_git_git_log", {"repo_path": "/used"})]


def test_equally_matching_tools_are_offered_as_choices() -> None:
    match, suggested = find_best_match("git", ALL, EarlierCalls())
    assert match is None
    assert len(suggested) > 3
    assert all("git" in tool.name for tool in suggested)


def test_hundreds_of_tools_are_searched() -> None:
    fillers = [
        ToolSpec(f"mcp_filler_do_{n}", f"Handles case number {n} of the filler", {})
        for n in range(600)
    ]
    assert list_calls("What time is it in Tokyo?", [*fillers, *ALL]) == [
        ("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})
    ]


def test_values_are_extracted_by_kind() -> None:
    text = "At 9:05 am in Sao Paulo, load https://a.b/c. from '/x y' to ~/z, 3 times"
    assert [(value.kind, value.value) for value in extract_values(text)] == [
        ("time", "09:05"),
        ("timezone", "America/Sao_Paulo"),
        ("url", "https://a.b/c"),
        ("quoted", "/x y"),
        ("path", "~/z"),
        ("number", 3),
    ]
