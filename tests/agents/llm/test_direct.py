"""Models over the OpenAI wire: what is sent, what comes back, and every way it can fail."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from agents.llm import direct
from agents.llm.port import (
    Endpoint,
    Message,
    ModelError,
    Reply,
    ToolSpec,
    Usage,
    close,
    model_for,
    tool_result,
    user_message,
)
from tests.agents.llm.openai_server import FakeOpenAI, Refuses, Says, Waits, openai_server

KEY = "sk-made-up-key-0123456789"
ODD_SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "Odd",
    "type": "object",
    "properties": {
        "zebra": {"type": "string", "format": "uri", "title": "Zebra"},
        "aardvark": {"$ref": "#/$defs/Count"},
        "either": {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
    },
    "$defs": {"Count": {"type": "integer", "minimum": 3, "x-unknown": [1, {"a": None}]}},
    "required": ["zebra"],
    "additionalProperties": True,
}
TOOLS = (ToolSpec("odd", "An odd tool", ODD_SCHEMA), ToolSpec("plain", "", {"type": "object"}))
HI = [user_message("hi")]


@pytest.fixture(autouse=True)
async def _closing() -> AsyncIterator[None]:
    async with asyncio.timeout(60):
        yield
        await close()


def at(fake: FakeOpenAI, **more: Any) -> Endpoint:
    known = {"kind": "openai", "base_url": fake.url, "api_key": KEY, "model": "some-model"}
    return Endpoint(**(known | {"allow_private": True, "timeout_s": 30.0} | more))


async def ask(
    fake: FakeOpenAI, messages: list[Message], *, stream: bool = False, **more: Any
) -> tuple[Reply, list[str]]:
    heard: list[str] = []

    async def listen(text: str) -> None:
        heard.append(text)

    reply = await model_for(at(fake, **more)).request(
        messages, instructions="Be brief.", tools=TOOLS, on_text=listen if stream else None
    )
    return reply, heard


async def fails(fake: FakeOpenAI, *, stream: bool = False, **more: Any) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(fake, HI, stream=stream, **more)
    assert KEY not in str(caught.value)
    return caught.value


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])


@both
async def test_text_arrives_with_usage(stream: bool) -> None:
    async with openai_server(Says("Hello there, world.")) as fake:
        reply, heard = await ask(fake, HI, stream=stream)
    assert reply.text == "Hello there, world."
    assert heard == (["Hell", "o th", "ere,", " wor", "ld."] if stream else [])
    assert (reply.calls, reply.usage, reply.finish) == ((), Usage(11, 7), "stop")
    assert reply.message == {"role": "assistant", "turn": 1, "text": reply.text, "calls": []}


@both
async def test_the_schema_goes_out_byte_for_byte(stream: bool) -> None:
    async with openai_server(Says("ok")) as fake:
        await ask(fake, HI, stream=stream)
    sent = fake.raw[0].decode()
    written = json.dumps(ODD_SCHEMA, separators=(",", ":"))
    assert written in sent.replace(": ", ":").replace(", ", ",")
    functions = [tool["function"] for tool in fake.requests[0]["tools"]]
    assert list(functions[0]["parameters"]["properties"]) == ["zebra", "aardvark", "either"]
    assert not any("strict" in function for function in functions)


async def test_instructions_key_and_model_reach_the_provider() -> None:
    async with openai_server(Says("ok")) as fake:
        await ask(fake, HI)
    assert fake.requests[0]["model"] == "some-model"
    assert fake.requests[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "hi"},
    ]
    assert fake.headers[0]["authorization"] == f"Bearer {KEY}"
    assert fake.headers[0]["accept-encoding"] == "identity"


async def test_without_a_key_none_is_sent() -> None:
    async with openai_server(Says("ok")) as fake:
        await ask(fake, HI, api_key="")
    assert "authorization" not in fake.headers[0]


async def test_nothing_of_the_process_environment_reaches_the_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-the-host")
    monkeypatch.setenv("OPENAI_ADMIN_KEY", "sk-admin-of-the-host")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-the-host")
    monkeypatch.setenv("OPENAI_PROJECT_ID", "project-of-the-host")
    monkeypatch.setenv("OPENAI_BASE_URL", "http://of-the-host.invalid/v1")
    monkeypatch.setenv("OPENAI_CUSTOM_HEADERS", "X-Of-The-Host: 1\nAuthorization: of-the-host")
    monkeypatch.setenv("HTTP_PROXY", "http://of-the-host.invalid:1")
    async with openai_server(Says("ok"), Says("ok")) as fake:
        await ask(fake, HI)
        await ask(fake, HI, api_key="")
    assert "of-the-host" not in str(fake.headers)
    assert "authorization" not in fake.headers[1]


@both
async def test_parallel_calls_are_answered_under_our_own_ids(stream: bool) -> None:
    calls = (("same", "odd", '{"zebra": "http://z"}'), ("same", "plain", "{}"))
    async with openai_server(Says(calls=calls), Says(calls=calls), Says("done")) as fake:
        history = list(HI)
        for _ in range(2):  # the provider repeats its ids from turn to turn
            reply, _ = await ask(fake, history, stream=stream)
            history.append(reply.message)
            history += [tool_result(c.id, c.name, f"of {c.id}") for c in reversed(reply.calls)]
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


async def test_fragments_of_parallel_calls_are_put_together() -> None:
    long = json.dumps({"zebra": "z" * 500})
    calls = (("a", "odd", long), ("b", "plain", '{"q": "ünï"}'), ("c", "odd", long))
    async with openai_server(Says("Let me look. ", calls=calls)) as fake:
        reply, heard = await ask(fake, HI, stream=True)
    assert "".join(heard) == reply.text == "Let me look. "
    assert [call.arguments for call in reply.calls] == [
        {"zebra": "z" * 500},
        {"q": "ünï"},
        {"zebra": "z" * 500},
    ]


@both
@pytest.mark.parametrize(
    ("written", "arguments"),
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
async def test_malformed_arguments_come_back_as_they_were_written(
    stream: bool, written: str, arguments: dict[str, Any] | None
) -> None:
    async with openai_server(Says(calls=(("x", "odd", written),)), Says("sorry")) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
        (call,) = reply.calls
        assert call.arguments == arguments
        if arguments is None:
            assert call.raw_arguments == written
        error = tool_result(call.id, call.name, "Not a JSON object.", is_error=True)
        await ask(fake, [*HI, reply.message, error], stream=stream)
    # A server that parses what it is sent gets JSON, whatever the model wrote.
    sent = fake.requests[1]["messages"][2]["tool_calls"][0]["function"]["arguments"]
    assert isinstance(json.loads(sent), dict)
    assert "Not a JSON object." in fake.requests[1]["messages"][3]["content"]


@both
async def test_an_unknown_tool_is_passed_on_for_the_loop_to_answer(stream: bool) -> None:
    async with openai_server(Says(calls=(("x", "no_such_tool", '{"a": 1}'),))) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert [(c.name, c.arguments) for c in reply.calls] == [("no_such_tool", {"a": 1})]


@both
@pytest.mark.parametrize(
    "usage", [None, {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}]
)
async def test_usage_that_is_missing_stays_unknown(
    stream: bool, usage: dict[str, Any] | None
) -> None:
    async with openai_server(Says("ok", usage=usage)) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert reply.usage is None


@both
async def test_tokens_from_the_cache_are_counted(stream: bool) -> None:
    used = {
        "prompt_tokens": 90,
        "completion_tokens": 5,
        "total_tokens": 95,
        "prompt_tokens_details": {"cached_tokens": 64},
    }
    async with openai_server(Says("ok", usage=used)) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert reply.usage == Usage(90, 5, 64)


@both
async def test_reasoning_goes_back_to_the_provider_that_gave_it(stream: bool) -> None:
    thinking = Says(calls=(("x", "plain", "{}"),), reasoning="I should look.")
    async with openai_server(thinking, Says("done")) as fake:
        reply, heard = await ask(fake, HI, stream=stream)
        kept = json.loads(json.dumps(reply.message))
        result = tool_result(reply.calls[0].id, "plain", "ok")
        await ask(fake, [*HI, kept, result], stream=stream)
    assert (reply.text, heard) == ("", [])
    said = fake.requests[1]["messages"][2]
    assert said["reasoning_content"] == "I should look."
    assert said["tool_calls"][0]["id"] == reply.calls[0].id


async def test_what_another_library_version_wrote_is_sent_without_its_extras() -> None:
    old = {"role": "assistant", "turn": 1, "text": "before", "calls": [], "native": {"kind": "?"}}
    async with openai_server(Says("ok")) as fake:
        await ask(fake, [*HI, old, user_message("and now")])
    assert fake.requests[0]["messages"][2] == {"role": "assistant", "content": "before"}


@both
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_why_an_answer_ended_is_told(stream: bool, finish: str) -> None:
    async with openai_server(Says("half an ans", finish=finish)) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert reply.finish == finish


@both
async def test_an_empty_answer_is_an_answer(stream: bool) -> None:
    async with openai_server(Says("")) as fake:
        reply, _ = await ask(fake, HI, stream=stream)
    assert (reply.text, reply.calls, reply.finish) == ("", (), "stop")


REFUSALS = [
    (Refuses(401, {"error": {"message": f"Incorrect key {KEY}"}}), "model_auth", False),
    (Refuses(403, {"error": {"message": "not yours"}}), "model_auth", False),
    (Refuses(429, {"error": {"message": "slow down"}}), "model_rate_limited", True),
    (Refuses(429, {"error": {"code": "insufficient_quota"}}), "model_error", False),
    (Refuses(500, "<h1>oops</h1>"), "model_error", True),
    (Refuses(503, {"error": "overloaded"}), "model_error", True),
    (Refuses(404, {"error": {"code": "model_not_found"}}), "model_error", False),
    (Refuses(400, {"error": {"code": "context_length_exceeded"}}), "model_error", False),
    (Refuses(422, {"detail": [{"msg": "?"}]}), "model_error", False),
]


@both
@pytest.mark.parametrize(("refusal", "code", "retryable"), REFUSALS)
async def test_a_refusal_has_a_code_and_a_remedy_and_is_not_tried_again(
    stream: bool, refusal: Refuses, code: str, retryable: bool
) -> None:
    async with openai_server(refusal) as fake:
        error = await fails(fake, stream=stream)
    assert (error.code, error.retryable) == (code, retryable)
    assert f"HTTP {refusal.status}" in str(error)
    assert error.remedy
    assert len(fake.requests) == 1


async def test_what_the_provider_says_is_quoted_harmlessly() -> None:
    words = "bad\u200b \u202e thing " + "x" * 5_000
    async with openai_server(Refuses(400, {"error": {"message": words}})) as fake:
        error = await fails(fake)
    assert "⟨U+200B⟩" in str(error)
    assert len(str(error)) < 600


@both
async def test_retry_after_is_kept(stream: bool) -> None:
    async with openai_server(Refuses(429, {}, {"Retry-After": "7"})) as fake:
        error = await fails(fake, stream=stream)
    assert (error.code, error.retry_after) == ("model_rate_limited", 7.0)


async def test_an_error_inside_a_stream_is_the_same_error() -> None:
    event = 'data: {"error": {"message": "slow down", "code": 429}}\n\n'
    sse = {"Content-Type": "text/event-stream"}
    async with openai_server(Refuses(200, event, sse)) as fake:
        error = await fails(fake, stream=True)
    assert error.code == "model_rate_limited"


@pytest.mark.parametrize("how", ["closed", "ended"])
async def test_a_stream_cut_in_the_middle_is_no_answer(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    says = Says("Some text first", calls=(("x", "odd", '{"zebra": "long enough"}'),), cut=how)
    heard: list[str] = []

    async def listen(text: str) -> None:
        heard.append(text)

    async with openai_server(says) as fake:
        with pytest.raises(ModelError) as caught:
            await model_for(at(fake)).request(HI, tools=TOOLS, on_text=listen)
    assert (caught.value.code, caught.value.retryable) == ("model_bad_answer", True)
    assert "".join(heard) == "Some text first"


@both
@pytest.mark.parametrize(
    "body", ["<html>a login page</html>", "", {}, [1], {"choices": []}, {"choices": [{}]}, "null"]
)
async def test_what_is_no_chat_completion_is_a_bad_answer(stream: bool, body: Any) -> None:
    async with openai_server(Refuses(200, body)) as fake:
        error = await fails(fake, stream=stream)
    assert error.code == "model_bad_answer"


@both
async def test_a_redirect_is_refused(stream: bool) -> None:
    async with openai_server(Refuses(302, "", {"Location": "http://10.0.0.1/v1"})) as fake:
        error = await fails(fake, stream=stream)
    assert (error.code, error.retryable) == ("redirect_refused", False)


@both
async def test_an_endless_answer_ends_at_the_cap(stream: bool) -> None:
    async with openai_server(Refuses(200, "x" * (17 * 1024 * 1024))) as fake:
        error = await fails(fake, stream=stream)
    assert error.code == "response_too_large"


async def test_a_private_address_needs_a_permission() -> None:
    async with openai_server() as fake:
        error = await fails(fake, allow_private=False)
    assert (error.code, error.retryable) == ("private_address", False)
    assert "model endpoint" in error.remedy
    assert fake.requests == []


@pytest.mark.parametrize(
    "url", ["ftp://host/v1", "http://user:pass@host/v1", "not a url", "http://[bad/v1"]
)
async def test_a_url_that_is_none_is_told_by_its_code(url: str) -> None:
    with pytest.raises(ModelError) as caught:
        await model_for(Endpoint("openai", url, model="m")).request(HI)
    assert caught.value.code == "bad_url"
    assert not caught.value.retryable


async def test_a_server_that_does_not_run_is_unreachable(free_port: int) -> None:
    endpoint = Endpoint("openai", f"http://127.0.0.1:{free_port}/v1", "", "m", allow_private=True)
    with pytest.raises(ModelError) as caught:
        await model_for(endpoint).request(HI)
    assert (caught.value.code, caught.value.retryable) == ("model_unreachable", True)
    assert caught.value.remedy


@both
async def test_an_answer_that_takes_too_long_is_a_timeout(stream: bool) -> None:
    async with openai_server(Waits()) as fake:
        error = await fails(fake, stream=stream, timeout_s=0.2)
        await fake.left.wait()
    assert (error.code, error.retryable) == ("model_timeout", True)


@both
async def test_cancelling_leaves_the_provider_at_once(stream: bool) -> None:
    async with openai_server(Waits()) as fake:
        task = asyncio.create_task(ask(fake, HI, stream=stream))
        await fake.arrived.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await fake.left.wait()


async def test_what_the_listener_raises_is_its_own() -> None:
    async def listen(text: str) -> None:
        raise KeyError("of the listener")

    async with openai_server(Says("some text"), Says("ok")) as fake:
        with pytest.raises(KeyError, match="of the listener"):
            await model_for(at(fake)).request(HI, on_text=listen)
        reply, _ = await ask(fake, HI)
    assert reply.text == "ok"


async def test_an_error_after_another_is_not_mistaken_for_it() -> None:
    async with openai_server(Refuses(401, {}), Refuses(500, {})) as fake:
        try:
            await ask(fake, HI)
        except ModelError:
            error = await fails(fake)
    assert error.code == "model_error"


async def test_an_unanswered_call_does_not_break_the_session() -> None:
    async with openai_server(Says(calls=(("x", "plain", "{}"),)), Says("ok")) as fake:
        reply, _ = await ask(fake, HI)
        await ask(fake, [*HI, reply.message, user_message("never mind")])
    roles = [message["role"] for message in fake.requests[1]["messages"]]
    assert roles == ["system", "user", "assistant", "tool", "user"]


async def test_requests_share_a_connection_only_with_the_same_credential() -> None:
    wire = await direct._wire()
    async with openai_server(*[Says("ok")] * 4) as fake:
        for key in ("one", "one", "two", "one"):
            await ask(fake, HI, api_key=key)
        (pool,) = [pool for pool in wire.clients._pools.values() if pool]
        assert len(pool) == 2
        await close()
        assert asyncio.get_running_loop() not in wire.clients._pools


async def test_idle_connections_of_old_credentials_are_let_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wire = await direct._wire()
    monkeypatch.setattr(wire.clients, "KEPT", 2)
    async with openai_server(*[Says("ok")] * 4) as fake:
        for key in ("one", "two", "three", "four"):
            await ask(fake, HI, api_key=key)
        pool = wire.clients._pools[asyncio.get_running_loop()]
        assert [key for _, key, _ in pool] == ["three", "four"]


async def test_a_hundred_requests_wait_side_by_side() -> None:
    async with openai_server(*[Says("ok")] * 100) as fake:
        replies = await asyncio.gather(*(ask(fake, HI, stream=True) for _ in range(100)))
    assert {reply.text for reply, _ in replies} == {"ok"}
