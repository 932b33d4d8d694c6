"""Conversations of the offline model, with the tools of real servers."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.llm.interface import (
    LanguageModelRequest,
    Message,
    ModelReply,
    ToolSpec,
    build_tool_result,
    build_user_message,
)
from agents.llm.offline import OfflineModel
from agents.llm.offline.model import split_text
from tests.agents.llm.offline import tools

TIME = tools.load_tools("time")
NOW = {
    "timezone": "Asia/Tokyo",
    "datetime": "2030-01-31T22:00:00+09:00",
    "day_of_week": "Thursday",
    "is_dst": False,
}
TYPED = "/mcp_time_get_current_time"


class Chat:
    """A conversation with the offline model and its messages."""

    def __init__(self, tool_specs: Sequence[ToolSpec], instructions: str = "") -> None:
        self.tool_specs = tool_specs
        self.instructions = instructions
        self.messages: list[Message] = []

    async def say(self, text: str) -> ModelReply:
        self.messages.append(build_user_message(text))
        return await self.request_reply()

    async def answer(self, *results: str, is_error: bool = False) -> ModelReply:
        """Return results of the calls of the last turn."""
        for call, text in zip(self.messages[-1]["calls"], results, strict=True):
            self.messages.append(build_tool_result(call["id"], call["name"], text, is_error))
        return await self.request_reply()

    async def request_reply(self) -> ModelReply:
        """Request the next reply of the model."""
        streamed: list[str] = []

        async def listen(text: str) -> None:
            streamed.append(text)

        reply = await OfflineModel().request(
            LanguageModelRequest(self.messages, self.instructions, self.tool_specs, on_text=listen)
        )
        assert "".join(streamed) == reply.text
        self.messages.append(json.loads(json.dumps(reply.message)))
        return reply


def get_calls(reply: ModelReply) -> list[tuple[str, Any]]:
    assert reply.finish == ("tool_calls" if reply.calls else "stop")
    return [(call.name, call.arguments) for call in reply.calls]


async def test_asking_for_the_time_in_tokyo_calls_the_time_server() -> None:
    chat = Chat(TIME)
    reply = await chat.say("What time is it in Asia/Tokyo?")
    assert get_calls(reply) == [("mcp_time_get_current_time", {"timezone": "Asia/Tokyo"})]
    reply = await chat.answer(json.dumps(NOW))
    assert "datetime: 2030-01-31T22:00:00+09:00" in reply.text
    assert "day of week: Thursday" in reply.text
    assert "not a language model" in reply.text
    assert get_calls(reply) == []


async def test_a_greeting_is_answered_with_the_commands() -> None:
    reply = await Chat(TIME).say("hello")
    assert "not a language model" in reply.text
    assert f'{TYPED} {{"timezone": ' in reply.text
    assert "`/mcp_time_convert_time`: Convert time between timezones" in reply.text


async def test_without_tools_the_reply_explains_how_to_add_them() -> None:
    reply = await Chat([]).say("What time is it?")
    assert "not a language model" in reply.text
    assert "no tools" in reply.text


async def test_without_a_matching_tool_nothing_is_called() -> None:
    reply = await Chat(TIME).say("Write me a poem about the sea")
    assert get_calls(reply) == []
    assert "not a language model" in reply.text


async def test_tool_commands_run_in_parallel() -> None:
    chat = Chat(TIME)
    lines = f'{TYPED} {{"timezone": "Mars/Olympus", "x": [1]}}\n/mcp_no_such_tool {{"a": null}}'
    assert get_calls(await chat.say(lines)) == [
        ("mcp_time_get_current_time", {"timezone": "Mars/Olympus", "x": [1]}),
        ("mcp_no_such_tool", {"a": None}),
    ]
    ids = [call["id"] for call in chat.messages[-1]["calls"]]
    assert ids == ["t0001c000", "t0001c001"]


async def test_an_invalid_command_runs_nothing_and_reports_the_position() -> None:
    reply = await Chat(TIME).say(f'{TYPED} {{"timezone": "UTC"}}\n{TYPED} {{"timezone": }}')
    assert get_calls(reply) == []
    assert "Line 2" in reply.text
    assert "Nothing was run" in reply.text


async def test_missing_arguments_are_named_with_the_command_to_type() -> None:
    reply = await Chat(TIME).say("Convert the time from Berlin to Tokyo")
    assert get_calls(reply) == []
    assert "I also need `time`" in reply.text
    assert '"source_timezone": "Europe/Berlin"' in reply.text
    assert '"target_timezone": "Asia/Tokyo"' in reply.text


async def test_the_repository_is_taken_from_the_instructions() -> None:
    chat = Chat(tools.load_tools("git"), "You help with code.\nThe repository is at /srv/code.")
    assert get_calls(await chat.say("Show the git log, 3 entries")) == [
        ("mcp_git_git_log", {"repo_path": "/srv/code", "max_count": 3})
    ]
    await chat.answer("Commit history:\n…")
    assert get_calls(await chat.say("and the git status of /other/code")) == [
        ("mcp_git_git_status", {"repo_path": "/other/code"})
    ]


async def test_a_tool_without_latin_letters_causes_no_error() -> None:
    odd = ToolSpec("工具", "Shows the time", {"properties": {"x": {}}, "required": ["x"]})
    assert (await Chat([odd, *TIME]).say("show the time and the time in Tokyo")).calls


async def test_a_failure_is_reported_with_the_other_results() -> None:
    chat = Chat([*TIME, *tools.load_tools("everything")])
    await chat.say(f'/mcp_everything_echo {{"message": "x"}}\n{TYPED} {{"timezone": "UTC"}}')
    echo, time = chat.messages[-1]["calls"]
    chat.messages.append(build_tool_result(time["id"], time["name"], json.dumps(NOW)))
    failed = "The server `everything` is unreachable. Check that it runs."
    chat.messages.append(build_tool_result(echo["id"], echo["name"], failed, is_error=True))
    reply = await chat.request_reply()
    assert f"`mcp_everything_echo` (message: x) failed: {failed}" in reply.text
    assert "day of week: Thursday" in reply.text


async def test_help_and_tools_are_commands() -> None:
    chat = Chat(tools.load_tools())
    assert "not a language model" in (await chat.say("/help")).text
    listed = (await chat.say("/tools")).text
    assert listed.count("\n- `/") == len(tools.load_tools())
    assert "mcp_git_git_log" not in (await chat.say("/tools timezone")).text


async def test_a_tool_command_accepts_words() -> None:
    chat = Chat(TIME)
    assert get_calls(await chat.say("/get_current_time Berlin")) == [
        ("mcp_time_get_current_time", {"timezone": "Europe/Berlin"})
    ]


async def test_a_message_that_arrives_while_tools_run_is_answered_too() -> None:
    chat = Chat(TIME)
    await chat.say("What time is it in Tokyo?")
    chat.messages.append(build_user_message("And what time is it in Berlin?"))
    call = chat.messages[-2]["calls"][0]
    chat.messages.append(build_tool_result(call["id"], call["name"], json.dumps(NOW)))
    reply = await chat.request_reply()
    assert "day of week: Thursday" in reply.text
    assert get_calls(reply) == [("mcp_time_get_current_time", {"timezone": "Europe/Berlin"})]


async def test_usage_is_counted_deterministically() -> None:
    replies = [await Chat(TIME).say("What time is it in Tokyo?") for _ in range(2)]
    assert replies[0] == replies[1]
    usage = replies[0].usage
    assert usage is not None
    assert usage.input_tokens > 100
    assert usage.output_tokens > 5


async def test_an_interrupted_call_isnt_repeated() -> None:
    chat = Chat(TIME)
    await chat.say("What time is it in Tokyo?")
    reply = await chat.say("")
    assert get_calls(reply) == []
    assert "interrupted" in reply.text


@given(st.text(max_size=200))
def test_the_streamed_parts_are_the_text(text: str) -> None:
    assert "".join(split_text(text)) == text


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=300), st.text(max_size=100))
def test_any_message_gets_an_answer_or_calls(text: str, instructions: str) -> None:
    messages = [build_user_message(text)]
    reply = asyncio.run(
        OfflineModel().request(LanguageModelRequest(messages, instructions, tools.load_tools()))
    )
    assert reply.text or reply.calls
    json.dumps(reply.message)


KEYWORDS = (
    *("type", "properties", "required", "enum", "items", "anyOf"),
    *("$ref", "format", "default", "description", "a"),
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYWORDS),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=120, deadline=None)
@given(st.dictionaries(st.sampled_from(["properties", "required", "$defs"]), JSON, max_size=3))
def test_any_schema_is_handled(schema: dict[str, Any]) -> None:
    odd = ToolSpec("mcp_odd_tool", "Does odd things", schema)
    for text in ("do odd things with 5, 'x' and a: b", "/odd_tool", "hello"):
        request = LanguageModelRequest([build_user_message(text)], tools=[odd, *TIME])
        reply = asyncio.run(OfflineModel().request(request))
        assert reply.text or reply.calls


@pytest.mark.parametrize(
    "text",
    ["a" * 40_000, "/" * 40_000, "1," * 20_000, "New " * 10_000, "x=1 " * 10_000, '"' * 40_000],
    ids=["a", "/", "1,", "New", "x=1", "quotes"],
)
async def test_a_huge_message_is_answered_quickly(text: str) -> None:
    async with asyncio.timeout(10):
        assert (await Chat(tools.load_tools()).say(text)).text
