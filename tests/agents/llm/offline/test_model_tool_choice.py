"""How the offline model chooses tools and arguments for a message."""

from collections.abc import Sequence
from typing import Any

import pytest

from agents.llm.interface import ToolSpec
from agents.llm.offline.arguments import MessageContext
from agents.llm.offline.match_tools import ToolTermIndex
from agents.llm.offline.model import MissingArguments, OfflinePlan, plan_message
from tests.agents.llm.offline import tools

ALL = ToolTermIndex(tools.load_tools())
TIME = ToolTermIndex(tools.load_tools("time"))

ONE_CALL: list[tuple[str, str, dict[str, Any]]] = [
    ("What time is it in Asia/Tokyo?", "get_current_time", {"timezone": "Asia/Tokyo"}),
    ("what's the time in new york", "get_current_time", {"timezone": "America/New_York"}),
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
        "14:30 in New York is what time in Berlin?",
        "convert_time",
        {
            "source_timezone": "America/New_York",
            "time": "14:30",
            "target_timezone": "Europe/Berlin",
        },
    ),
    (
        "What time is it in Tokyo when it's 2:30 pm in Berlin?",
        "convert_time",
        {"source_timezone": "Europe/Berlin", "time": "14:30", "target_timezone": "Asia/Tokyo"},
    ),
    (
        "convert 14:30 to Tokyo time",
        "convert_time",
        {"source_timezone": "Etc/UTC", "time": "14:30", "target_timezone": "Asia/Tokyo"},
    ),
    ("show the git log of /some/path", "git_log", {"repo_path": "/some/path"}),
    ("Show me the last 3 commits of /r", "git_log", {"repo_path": "/r", "max_count": 3}),
    ("git status of /repo", "git_status", {"repo_path": "/repo"}),
    ("show staged changes in /repo", "git_diff_staged", {"repo_path": "/repo"}),
    ("show unstaged changes in /repo", "git_diff_unstaged", {"repo_path": "/repo"}),
    ("diff against main in /repo", "git_diff", {"repo_path": "/repo", "target": "main"}),
    ("Reset /repo", "git_reset", {"repo_path": "/repo"}),
    ("switch to branch dev in /r", "git_checkout", {"repo_path": "/r", "branch_name": "dev"}),
    (
        "list remote branches of /repo",
        "git_branch",
        {"repo_path": "/repo", "branch_type": "remote"},
    ),
    (
        "create a branch called fix-1 in /repo",
        "git_create_branch",
        {"repo_path": "/repo", "branch_name": "fix-1"},
    ),
    (
        "show commit abc1234 of /repo",
        "git_show",
        {"repo_path": "/repo", "revision": "abc1234"},
    ),
    (
        "git add README.md and src/main.py in repo_path=/repo",
        "git_add",
        {"repo_path": "/repo", "files": ["README.md", "src/main.py"]},
    ),
    ('git commit "Fix it" in /r', "git_commit", {"repo_path": "/r", "message": "Fix it"}),
    ("What's on https://example.com ?", "fetch", {"url": "https://example.com"}),
    (
        "Fetch https://example.com, max_length: 200",
        "fetch",
        {"url": "https://example.com", "max_length": 200},
    ),
    ("get the raw page https://a.b/c", "fetch", {"url": "https://a.b/c", "raw": True}),
    ("echo hello world", "echo", {"message": "hello world"}),
    ('Please echo "a and b, then c"', "echo", {"message": "a and b, then c"}),
    ("say hi", "echo", {"message": "hi"}),
    ("add 2 and 3", "get_sum", {"a": 2, "b": 3}),
    ("what is the sum of two and 3.5?", "get_sum", {"a": 2, "b": 3.5}),
    (
        "get an annotated error message without image",
        "get_annotated_message",
        {"messageType": "error", "includeImage": False},
    ),
    ("structured content for chicago", "get_structured_content", {"location": "Chicago"}),
    ("show me the tiny image", "get_tiny_image", {}),
    ("search for cats and dogs", "search", {"query": "cats and dogs"}),
    ("find the top 3 pages about celery", "search", {"query": "pages about celery", "limit": 3}),
    ("read the file /etc/hosts", "read_file", {"path": "/etc/hosts"}),
    ("delete the file /tmp/x", "delete_file", {"path": "/tmp/x"}),
    ("what is the weather in Paris?", "get_forecast", {"city": "Paris"}),
    ("weather for New York, please", "get_forecast", {"city": "New York"}),
    (
        "forecast for Oslo in imperial units",
        "get_forecast",
        {"city": "Oslo", "units": "imperial"},
    ),
]


def get_calls(plan: OfflinePlan) -> list[tuple[str, dict[str, Any]]]:
    return [(name, arguments) for name, arguments in plan.calls]


@pytest.mark.parametrize(("text", "name", "arguments"), ONE_CALL, ids=[c[0] for c in ONE_CALL])
def test_a_message_becomes_one_call(text: str, name: str, arguments: dict[str, Any]) -> None:
    assert get_calls(plan_message(text, ALL, MessageContext())) == [
        (tools.get_tool(name).name, arguments)
    ]


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
        "what tools do you have?",
        "42",
        "",
    ],
)
@pytest.mark.parametrize("index", [ALL, TIME], ids=["all", "time"])
def test_a_message_that_matches_no_tool_calls_none(text: str, index: ToolTermIndex) -> None:
    plan = plan_message(text, index, MessageContext())
    assert plan.calls == ()
    assert plan.incomplete_call is None


SEVERAL: list[tuple[str, list[tuple[str, dict[str, Any]]]]] = [
    (
        "What time is it in Tokyo and Berlin?",
        [
            ("get_current_time", {"timezone": "Asia/Tokyo"}),
            ("get_current_time", {"timezone": "Europe/Berlin"}),
        ],
    ),
    (
        "What time is it in Tokyo? And in Berlin?",
        [
            ("get_current_time", {"timezone": "Asia/Tokyo"}),
            ("get_current_time", {"timezone": "Europe/Berlin"}),
        ],
    ),
    (
        "Echo 'hello' and get the sum of 2 and 3",
        [("echo", {"message": "hello"}), ("get_sum", {"a": 2, "b": 3})],
    ),
    (
        "Show git status and git log of /repo",
        [("git_status", {"repo_path": "/repo"}), ("git_log", {"repo_path": "/repo"})],
    ),
    (
        "show the git log of /repo, then fetch https://example.com",
        [("git_log", {"repo_path": "/repo"}), ("fetch", {"url": "https://example.com"})],
    ),
    (
        "Fetch https://a.com and https://b.com/x",
        [("fetch", {"url": "https://a.com"}), ("fetch", {"url": "https://b.com/x"})],
    ),
]


@pytest.mark.parametrize(("text", "expected"), SEVERAL, ids=[case[0] for case in SEVERAL])
def test_several_requests_become_several_calls(
    text: str, expected: list[tuple[str, dict[str, Any]]]
) -> None:
    expected_calls = [(tools.get_tool(name).name, arguments) for name, arguments in expected]
    assert get_calls(plan_message(text, ALL, MessageContext())) == expected_calls


def test_a_bare_value_is_passed_to_the_last_tool() -> None:
    assert plan_message("and in Berlin?", ALL, MessageContext()).calls == ()
    for name, slot, value in (
        ("mcp_time_get_current_time", "timezone", "Europe/Berlin"),
        ("mcp_weather_get_forecast", "city", "Berlin"),
    ):
        context = MessageContext(recent_tools=frozenset({name}))
        assert get_calls(plan_message("and in Berlin?", ALL, context)) == [(name, {slot: value})]


def test_a_destructive_tool_isnt_called_for_each_value() -> None:
    assert get_calls(plan_message("delete the file /a and /b", ALL, MessageContext())) == [
        (tools.get_tool("delete_file").name, {"path": "/a"})
    ]


def test_a_destructive_tool_needs_an_explicit_request() -> None:
    index = ToolTermIndex([tools.get_tool("delete_file"), tools.get_tool("git_reset")])
    for text in ("the file /tmp/x", "show the file /tmp/x", "git changes of /repo"):
        assert plan_message(text, index, MessageContext()).calls == ()


def test_a_missing_argument_becomes_a_question() -> None:
    plan = plan_message("show the git log", ALL, MessageContext())
    assert plan.calls == ()
    assert plan.incomplete_call is not None
    assert plan.incomplete_call.tool.name == "mcp_git_git_log"
    assert plan.incomplete_call.missing == ("repo_path",)


def test_equally_matching_tools_are_offered_as_choices() -> None:
    plan = plan_message("tell me about git", ALL, MessageContext())
    assert (plan.calls, plan.incomplete_call) == ((), None)
    assert len(plan.suggested_tools) > 3
    assert all("git" in tool.name for tool in plan.suggested_tools)


QUESTION = MissingArguments("mcp_git_git_commit", {"repo_path": "/r"}, ("message",))


def test_any_text_answers_a_question_for_one_string() -> None:
    plan = plan_message("Improve the wording", ALL, MessageContext(), QUESTION)
    assert get_calls(plan) == [
        ("mcp_git_git_commit", {"repo_path": "/r", "message": "Improve the wording"})
    ]


def test_a_partial_answer_is_followed_by_the_remaining_question() -> None:
    question = MissingArguments("mcp_git_git_commit", {}, ("repo_path", "message"))
    plan = plan_message("it is in /r", ALL, MessageContext(), question)
    assert plan.incomplete_call is not None
    assert plan.incomplete_call.arguments == {"repo_path": "/r"}
    assert plan.incomplete_call.missing == ("message",)


def test_a_question_about_a_removed_tool_is_dropped() -> None:
    assert plan_message("Improve the wording", TIME, MessageContext(), QUESTION).calls == ()


@pytest.mark.parametrize(
    ("context", "path"),
    [
        (MessageContext(earlier_messages=("look at /a/b please",)), "/a/b"),
        (MessageContext(earlier_arguments={"repo_path": "/used"}), "/used"),
        (MessageContext(instructions="Repository: /from/instructions"), "/from/instructions"),
        (MessageContext(instructions="Working directory: `/from/here`."), "/from/here"),
    ],
)
def test_a_path_is_taken_from_the_session(context: MessageContext, path: str) -> None:
    assert get_calls(plan_message("show the git log", ALL, context)) == [
        ("mcp_git_git_log", {"repo_path": path})
    ]


def test_unrelated_paths_in_instructions_arent_used() -> None:
    context = MessageContext(instructions="Read the manual at /usr/share/doc first.")
    assert plan_message("show the git log", ALL, context).incomplete_call is not None


def test_hundreds_of_tools_are_searched() -> None:
    fillers: Sequence[ToolSpec] = [
        ToolSpec(f"mcp_filler_do_{n}", f"Handles case number {n} of the filler", {})
        for n in range(600)
    ]
    plan = plan_message(
        "What time is it in Tokyo?",
        ToolTermIndex([*fillers, *tools.load_tools()]),
        MessageContext(),
    )
    assert get_calls(plan) == [("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})]
