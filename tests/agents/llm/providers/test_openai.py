"""Requests to the OpenAI API and their replies."""

import asyncio
import json
from typing import Any

import pytest

from agents.llm import interface as llm_interface
from agents.llm.interface import TokenUsage, build_tool_result, build_user_message, close_models
from tests.agents.llm.ask_provider import HI, KEY, ODD_SCHEMA, ask, provider, stream_modes
from tests.agents.llm.openai_server import Says


@stream_modes
async def test_text_arrives_with_usage(stream: bool) -> None:
    async with provider(Says("Hello there, world.")) as fake:
        reply, streamed = await ask(fake, HI, stream=stream)
    assert reply.text == "Hello there, world."
    assert streamed == (["Hell", "o th", "ere,", " wor", "ld."] if stream else [])
    assert (reply.calls, reply.usage, reply.finish) == ((), TokenUsage(11, 7), "stop")
    assert reply.message == {"role": "assistant", "turn": 1, "text": reply.text, "calls": []}


@stream_modes
async def test_the_schema_is_sent_unchanged(stream: bool) -> None:
    async with provider(Says("ok")) as fake:
        await ask(fake, HI, stream=stream)
    sent = fake.raw[0].decode()
    schema = json.dumps(ODD_SCHEMA, separators=(",", ":"))
    assert schema in sent.replace(": ", ":").replace(", ", ",")
    functions = [tool["function"] for tool in fake.requests[0]["tools"]]
    assert list(functions[0]["parameters"]["properties"]) == ["zebra", "aardvark", "either"]
    assert not any("strict" in function for function in functions)


async def test_instructions_key_and_model_are_sent() -> None:
    async with provider(Says("ok")) as fake:
        await ask(fake, HI)
    assert fake.requests[0]["model"] == "some-model"
    assert fake.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert fake.headers[0]["authorization"] == f"Bearer {KEY}"
    assert fake.headers[0]["accept-encoding"] == "identity"


async def test_without_an_api_key_no_authorization_is_sent() -> None:
    async with provider(Says("ok")) as fake:
        await ask(fake, HI, api_key="")
    assert "authorization" not in fake.headers[0]


async def test_environment_variables_arent_used_for_the_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-of-the-host")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-host")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-the-host")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://of-the-host.invalid/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Of-The-Host: 1\nAuthorization: of-the-host")
    monkeypatch.setenv("HTTP_PROXY", "http://of-the-host.invalid:1")
    async with provider(Says("ok"), Says("ok")) as fake:
        await ask(fake, HI)
        await ask(fake, HI, api_key="")
    assert "of-the-host" not in str(fake.headers)
    assert "authorization" not in fake.headers[1]


@stream_modes
async def test_parallel_calls_have_our_own_ids(stream: bool) -> None:
    calls = (("same", "odd", '{"zebra": "http://z"}'), ("same", "plain", "{}"))
    async with provider(Says(calls=calls), Says(calls=calls), Says("done")) as fake:
        history = list(HI)
        for _ in range(2):  # the provider repeats its ids from turn to turn
            reply, _ = await ask(fake, history, stream=stream)
            history.append(reply.message)
            history += [
                build_tool_result(c.id, c.name, f"of {c.id}") for c in reversed(reply.calls)
            ]
        await ask(fake, history, stream=stream)
    assert [(c.index, c.name, c.arguments) for c in reply.calls] == [
        (0, "odd", {"zebra": "http://z"}),
        (1, "plain", {}),
    ]
    assert reply.finish == "tool_calls"
    sent = fake.requests[2]["messages"][2:]
    assert [[c["id"] for c in m["tool_calls"]] for m in sent if m["role"] == "assistant"] == [
        ["t0001c000", "t0001c001"],
        ["t0002c000", "t0002c001"],
    ]
    assert [(m["tool_call_id"], m["content"]) for m in sent if m["role"] == "tool"] == [
        (id_, f"of {id_}") for id_ in ("t0001c000", "t0001c001", "t0002c000", "t0002c001")
    ]


async def test_fragments_of_parallel_calls_are_joined() -> None:
    long_arguments = json.dumps({"zebra": "z" * 500})
    calls = (
        ("a", "odd", long_arguments),
        ("b", "plain", '{"q": "ünï"}'),
        ("c", "odd", long_arguments),
    )
    async with provider(Says("Let me look. ", calls=calls)) as fake:
        reply, streamed = await ask(fake, HI, stream=True)
    assert "".join(streamed) == reply.text == "Let me look. "
    assert [call.arguments for call in reply.calls] == [
        {"zebra": "z" * 500},
        {"q": "ünï"},
        {"zebra": "z" * 500},
    ]


@stream_modes
@pytest.mark.parametrize(
    ("raw_arguments", "arguments"),
    [
        ("", {}),
        ("  ", {}),
        ('{"a": {"b": [1]}}', {"a": {"b": [1]}}),
        ('{"a": ', None),
        ("[1]", None),
        ('"text"', None),
        ("null", None),
        ('{"a": NaN}', None),
        ('{"a":' + "[" * 5_000, None),
        ('{"a": ' + "9" * 5_000 + "}", None),
    ],
    ids=range(10),
)
async def test_malformed_arguments_are_returned_unchanged(
    stream: bool, raw_arguments: str, arguments: dict[str, Any] | None
) -> None:
    async with provider(Says(calls=(("x", "odd", raw_arguments),)), Says("sorry")) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
        (call,) = reply.calls
        assert call.arguments == arguments
        if arguments is None:
            assert call.raw_arguments == raw_arguments
        error = build_tool_result(call.id, call.name, "Not a JSON object.", is_error=True)
        await ask(fake, [*HI, reply.message, error], stream=stream)
    # The arguments sent back are valid JSON, whatever the model wrote.
    sent = fake.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)
    assert "Not a JSON object." in fake.requests[1]["messages"][3]["content"]


@stream_modes
async def test_a_call_of_an_unknown_tool_is_passed_to_the_loop(stream: bool) -> None:
    async with provider(Says(calls=(("x", "no_such_tool", '{"a": 1}'),))) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert [(c.name, c.arguments) for c in reply.calls] == [("no_such_tool", {"a": 1})]


@stream_modes
@pytest.mark.parametrize(
    "usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}]
)
async def test_missing_usage_stays_unknown(stream: bool, usage: dict[str, Any] | None) -> None:
    async with provider(Says("ok", usage=usage)) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert reply.usage is None


@stream_modes
async def test_cached_tokens_are_counted(stream: bool) -> None:
    usage = {
        "prompt_tokens": 90,
        "completion_tokens": 5,
        "total_tokens": 95,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    async with provider(Says("ok", usage=usage)) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert reply.usage == TokenUsage(90, 5, 64)


@stream_modes
async def test_reasoning_is_sent_back_to_its_provider(stream: bool) -> None:
    thinking = Says(calls=(("x", "plain", "{}"),), reasoning="I should look.")
    async with provider(thinking, Says("done")) as fake:
        reply, streamed = await ask(fake, HI, stream=stream)
        stored_message = json.loads(json.dumps(reply.message))
        result = build_tool_result(reply.calls[0].id, "plain", "ok")
        await ask(fake, [*HI, stored_message, result], stream=stream)
    assert (reply.text, streamed) == ("", [])
    sent = fake.requests[1]["messages"][2]
    assert sent["reasoning_content"] == "I should look."
    assert sent["tool_calls"][0]["id"] == reply.calls[0].id


async def test_messages_of_another_library_version_are_sent_without_extra_fields() -> None:
    old = {"role": "assistant", "turn": 1, "text": "before", "calls": [], "native": {"kind": "?"}}
    async with provider(Says("ok")) as fake:
        await ask(fake, [*HI, old, build_user_message("and now")])
    assert fake.requests[0]["messages"][2] == {"role": "assistant", "content": "before"}


@stream_modes
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_finish_reason_is_returned(stream: bool, finish: str) -> None:
    async with provider(Says("half an ans", finish=finish)) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert reply.finish == finish


@stream_modes
async def test_an_empty_answer_is_returned(stream: bool) -> None:
    async with provider(Says("")) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert (reply.text, reply.calls, reply.finish) == ("", (), "stop")


async def test_a_call_without_a_result_doesnt_break_the_session() -> None:
    async with provider(Says(calls=(("x", "plain", "{}"),)), Says("ok")) as fake:
        reply, _ = await ask(fake, HI)
        await ask(fake, [*HI, reply.message, build_user_message("never mind")])
    roles = [message["role"] for message in fake.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


async def test_requests_share_a_connection_only_with_the_same_credential() -> None:
    adapter = await llm_interface._get_adapter()
    async with provider(*[Says("ok")] * 4) as fake:
        for key in ("one", "one", "two", "one"):
            await ask(fake, HI, api_key=key)
        pool = adapter._pools[asyncio.get_running_loop()]
        assert len(pool.connections) == 2
        await close_models()
        assert asyncio.get_running_loop() not in adapter._pools


async def test_idle_connections_of_old_credentials_are_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    adapter = await llm_interface._get_adapter()
    monkeypatch.setattr(adapter, "MAX_POOLS", 2)
    async with provider(*[Says("ok")] * 4) as fake:
        for key in ("one", "two", "three", "four"):
            await ask(fake, HI, api_key=key)
        pool = adapter._pools[asyncio.get_running_loop()]
        assert [key[4] for key in pool.connections] == ["three", "four"]


async def test_a_hundred_requests_wait_in_parallel() -> None:
    async with provider(*[Says("ok")] * 100) as fake:
        replies = await asyncio.gather(*(ask(fake, HI, stream=True) for _ in range(100)))
    assert {reply.text for reply, _ in replies} == {"ok"}
