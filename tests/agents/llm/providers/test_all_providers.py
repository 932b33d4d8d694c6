"""One table of cases that every provider's wire goes through."""

import asyncio
import json
from typing import Any

import pytest

from agents.llm.interface import (
    ModelError,
    TokenUsage,
    ToolSpec,
    build_model,
    build_tool_result,
    build_user_message,
    close_models,
)
from agents.llm.pydantic_ai_adapter import open_model
from agents.llm.tool_schemas import convert_schema
from tests.agents.llm.provider_protocols import (
    KEY,
    Wire,
    ask,
    at,
    both,
    every_wire,
    fails,
    outcome,
    provider,
)
from tests.agents.llm.provider_server import Refuses, Says, Waits

HI = [build_user_message("hi")]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "title": "Odd",
    "properties": {
        "zebra": {"type": "string", "format": "uri", "enum": ["a", "b"], "default": "a"},
        "count": {"$ref": "#/$defs/Count"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "$defs": {"Count": {"type": "integer", "minimum": 3}},
    "required": ["zebra"],
}
TOOLS = (ToolSpec("odd", "An odd tool", SCHEMA), ToolSpec("plain", "Plain", {"type": "object"}))
# What a worker's environment may hold of its operator's.
AMBIENT = {
    "OPENAI_API_KEY": "of-the-host",
    "OPENAI_ORG_ID": "of-the-host",
    "OPENAI_CUSTOM_HEADERS": "X-Host: of-the-host",
    "AZURE_OPENAI_API_KEY": "of-the-host",
    "AZURE_OPENAI_AD_TOKEN": "of-the-host",
    "AZURE_OPENAI_ENDPOINT": "http://of-the-host.invalid",
    "OPENAI_API_VERSION": "of-the-host",
    "ANTHROPIC_API_KEY": "of-the-host",
    "ANTHROPIC_AUTH_TOKEN": "of-the-host",
    "ANTHROPIC_BASE_URL": "http://of-the-host.invalid",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Host: of-the-host\nX-Api-Key: of-the-host",
    "ANTHROPIC_PROFILE": "of-the-host",
    "GOOGLE_API_KEY": "of-the-host",
    "GEMINI_API_KEY": "of-the-host",
    "GOOGLE_GENAI_USE_VERTEXAI": "true",
    "GOOGLE_CLOUD_PROJECT": "of-the-host",
    "GOOGLE_CLOUD_LOCATION": "of-the-host",
    "GOOGLE_APPLICATION_CREDENTIALS": "/of-the-host.json",
    "GOOGLE_API_USE_MTLS_ENDPOINT": "always",
    "GOOGLE_GEMINI_BASE_URL": "http://of-the-host.invalid",
    "AWS_ACCESS_KEY_ID": "of-the-host",
    "AWS_SECRET_ACCESS_KEY": "of-the-host",
    "AWS_SESSION_TOKEN": "of-the-host",
    "AWS_BEARER_TOKEN_BEDROCK": "of-the-host",
    "AWS_DEFAULT_REGION": "of-the-host",
    "AWS_ENDPOINT_URL": "http://of-the-host.invalid",
    "AWS_ENDPOINT_URL_BEDROCK_RUNTIME": "http://of-the-host.invalid",
    "AWS_PROFILE": "of-the-host",
    "AWS_CA_BUNDLE": "/of-the-host.pem",
    "AWS_SDK_UA_APP_ID": "of-the-host",
    "HTTP_PROXY": "http://of-the-host.invalid:1",
    "HTTPS_PROXY": "http://of-the-host.invalid:1",
}


@every_wire
@both
async def test_text_arrives_with_usage(wire: Wire, stream: bool) -> None:
    async with provider(wire, Says("Hello there, world.")) as fake:
        reply, heard = await ask(wire, fake, HI, stream=stream)
    assert (reply.text, reply.calls, reply.finish) == ("Hello there, world.", (), "stop")
    assert "".join(heard) == ("Hello there, world." if stream else "")
    assert reply.usage == TokenUsage(11, 7)


@every_wire
async def test_instructions_and_history_are_sent(wire: Wire) -> None:
    async with provider(wire, Says("ok"), Says("fine")) as fake:
        reply, _ = await ask(wire, fake, HI)
        await ask(wire, fake, [*HI, reply.message, build_user_message("and now?")])
    arrived = fake.read()
    assert arrived.system == "Be brief."
    assert [(one.role, one.text) for one in arrived.said] == [
        ("user", "hi"),
        ("model", "ok"),
        ("user", "and now?"),
    ]


@every_wire
@both
async def test_schemas_are_sent_in_the_providers_format(wire: Wire, stream: bool) -> None:
    async with provider(wire, Says("ok")) as fake:
        await ask(wire, fake, HI, stream=stream, tools=TOOLS)
    arrived = fake.read()
    assert arrived.tools["odd"] == convert_schema(wire.kind, SCHEMA)
    assert arrived.tools["odd"]["required"] == ["zebra"]
    assert arrived.tools["odd"]["properties"]["zebra"]["enum"] == ["a", "b"]
    assert arrived.tools["odd"]["properties"]["zebra"]["default"] == "a"
    assert arrived.tools["odd"]["properties"]["tags"]["items"] == {"type": "string"}


@every_wire
@both
async def test_parallel_calls_have_our_own_ids(wire: Wire, stream: bool) -> None:
    long = json.dumps({"zebra": "z" * 100})
    calls = (("same", "odd", long), ("same2", "plain", "{}"), ("same3", "odd", '{"zebra": "ü"}'))
    async with provider(wire, Says(calls=calls), Says("Well. ", calls=calls), Says("done")) as fake:
        history = list(HI)
        for _ in range(2):  # the provider repeats its ids from turn to turn
            reply, heard = await ask(wire, fake, history, stream=stream, tools=TOOLS)
            history.append(json.loads(json.dumps(reply.message)))
            history += [
                build_tool_result(c.id, c.name, f"of {c.id}") for c in reversed(reply.calls)
            ]
        last, _ = await ask(wire, fake, history, stream=stream, tools=TOOLS)
    assert [(c.index, c.name, c.arguments) for c in reply.calls] == [
        (0, "odd", {"zebra": "z" * 100}),
        (1, "plain", {}),
        (2, "odd", {"zebra": "ü"}),
    ]
    assert (reply.finish, reply.text, "".join(heard)) == (
        "tool_calls",
        "Well. ",
        "Well. " if stream else "",
    )
    said = fake.read()
    wanted = [f"t{turn:04d}c{index:03d}" for turn in (1, 2) for index in range(3)]
    assert [one.id for one in said.of("call")] == wanted
    assert json.loads(said.of("call")[0].text) == {"zebra": "z" * 100}
    assert [(one.id, one.text) for one in said.of("result")] == [(w, f"of {w}") for w in wanted]
    assert last.text == "done"


@every_wire
@both
async def test_a_failed_call_is_sent_as_an_error(wire: Wire, stream: bool) -> None:
    calls = (("x", "odd", "{}"),)
    async with provider(wire, Says(calls=calls), Says("sorry")) as fake:
        reply, _ = await ask(wire, fake, HI, stream=stream, tools=TOOLS)
        told = build_tool_result(reply.calls[0].id, "odd", "Not allowed.", is_error=True)
        await ask(wire, fake, [*HI, reply.message, told], stream=stream, tools=TOOLS)
    assert "Not allowed." in fake.raw[1].decode()


@every_wire
@both
async def test_missing_usage_stays_unknown(wire: Wire, stream: bool) -> None:
    nothing = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    async with provider(wire, Says("ok", usage=None), Says("ok", usage=nothing)) as fake:
        if wire.requires_usage:
            assert (await fails(wire, fake, HI, stream=stream)).code == "provider_error"
        else:
            assert (await ask(wire, fake, HI, stream=stream))[0].usage is None
        reply, _ = await ask(wire, fake, HI, stream=stream)
    assert (reply.text, reply.usage) == ("ok", None)


@every_wire
@both
@pytest.mark.parametrize(
    ("status", "code", "retryable"),
    [
        (400, "model_error", False),
        (401, "model_auth", False),
        (404, "model_error", False),
        (429, "model_rate_limited", True),
        (500, "model_error", True),
        (503, "model_error", True),
    ],
)
async def test_a_refusal_has_a_code_and_isnt_retried(
    wire: Wire, stream: bool, status: int, code: str, retryable: bool
) -> None:
    async with provider(wire, Refuses(status, wire.error(status, "the words"))) as fake:
        error = await fails(wire, fake, HI, stream=stream)
    assert (error.code, error.retryable) == (code, retryable)
    assert f"HTTP {status}" in str(error)
    assert "the words" in str(error)
    assert error.remedy
    assert len(fake.requests) == 1


@every_wire
@both
async def test_retry_after_is_kept(wire: Wire, stream: bool) -> None:
    refusal = Refuses(429, wire.error(429, "slow down"), {"Retry-After": "7"})
    async with provider(wire, refusal) as fake:
        error = await fails(wire, fake, HI, stream=stream)
    assert (error.code, error.retry_after) == ("model_rate_limited", 7.0)


@every_wire
@pytest.mark.parametrize("how", ["closed", "ended"])
async def test_a_truncated_stream_isnt_an_answer(
    wire: Wire, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    says = Says("Some text first", calls=(("x", "odd", '{"zebra": "long enough"}'),), cut=how)
    heard: list[str] = []

    async def listen(text: str) -> None:
        heard.append(text)

    async with provider(wire, says) as fake:
        with pytest.raises(ModelError) as caught:
            await build_model(at(wire, fake)).request(HI, tools=TOOLS, on_text=listen)
    assert (caught.value.code, caught.value.retryable) == ("model_bad_answer", True)
    assert heard
    assert "Some text first".startswith("".join(heard))


@every_wire
@both
async def test_a_call_of_an_unknown_tool_is_passed_to_the_loop(wire: Wire, stream: bool) -> None:
    async with provider(wire, Says(calls=(("x", "no_such_tool", '{"a": 1}'),))) as fake:
        reply, _ = await ask(wire, fake, HI, stream=stream, tools=TOOLS)
    assert [(c.name, c.arguments) for c in reply.calls] == [("no_such_tool", {"a": 1})]


@every_wire
@pytest.mark.parametrize("written", ['{"a": ', "[1]", '"text"', '{"a": NaN}'])
async def test_malformed_arguments_are_returned_as_invalid(wire: Wire, written: str) -> None:
    if not wire.keeps_bad_arguments:
        written = '{"a": 1}'
    says = Says(calls=(("x", "odd", written),))
    async with provider(wire, says, Says("sorry")) as fake:
        reply, _ = await ask(wire, fake, HI, stream=True, tools=TOOLS)
        (call,) = reply.calls
        if wire.keeps_bad_arguments:
            assert call.arguments is None
        told = build_tool_result(call.id, "odd", "Not a JSON object.", is_error=True)
        await ask(wire, fake, [*HI, reply.message, told], stream=True, tools=TOOLS)
    # What goes back is a history that the provider can read.
    assert [one.id for one in fake.read().of("call")] == [call.id]
    assert "Not a JSON object." in fake.raw[1].decode()


@every_wire
@both
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_finish_reason_is_returned(wire: Wire, stream: bool, finish: str) -> None:
    async with provider(wire, Says("half an ans", finish=finish)) as fake:
        reply, _ = await ask(wire, fake, HI, stream=stream)
    assert (reply.finish, reply.text) == (finish, "half an ans")


@every_wire
@both
@pytest.mark.filterwarnings("ignore:.* is not a valid FinishReason")
async def test_an_unknown_finish_reason_keeps_the_answer(wire: Wire, stream: bool) -> None:
    async with provider(wire, Says("the answer", finish="some_new_reason")) as fake:
        reply, heard = await ask(wire, fake, HI, stream=stream)
    assert (reply.text, reply.finish) == ("the answer", "stop")
    assert "".join(heard) == ("the answer" if stream else "")


@every_wire
@both
async def test_an_account_without_credit_has_its_own_code(wire: Wire, stream: bool) -> None:
    words = "Your credit balance is too low to access this API."
    async with provider(wire, Refuses(400, wire.error(400, words))) as fake:
        error = await fails(wire, fake, HI, stream=stream)
    assert (error.code, error.retryable) == ("model_no_credit", False)
    assert words in str(error)


@every_wire
@both
async def test_reasoning_is_sent_back_only_to_its_provider(wire: Wire, stream: bool) -> None:
    thinking = Says(calls=(("x", "plain", "{}"),), reasoning="I should look.")
    async with provider(wire, thinking, Says("done"), Says("done")) as fake:
        reply, heard = await ask(wire, fake, HI, stream=stream, tools=TOOLS)
        kept = json.loads(json.dumps(reply.message))
        history = [*HI, kept, build_tool_result(reply.calls[0].id, "plain", "ok")]
        await ask(wire, fake, history, stream=stream, tools=TOOLS)
        own = fake.read()
        await ask(wire, fake, history, stream=stream, tools=TOOLS, model=f"{wire.model}-x")
    assert (reply.text, heard) == ("", [])
    assert own.of("thought")
    assert any(one.id for one in own.of("thought")) == wire.signs
    assert [one.id for one in own.of("call")] == [reply.calls[0].id]
    assert "I should look." not in fake.raw[2].decode()
    assert fake.read().of("thought") == []
    assert [one.id for one in fake.read().of("call")] == [reply.calls[0].id]


@every_wire
@both
async def test_images_of_users_and_tools_are_sent(wire: Wire, stream: bool) -> None:
    picture = {"media_type": "image/png", "data": b"\x89PNG\r\n\x1a\nnot really"}
    calls = (("x", "plain", "{}"),)
    async with provider(wire, Says(calls=calls), Says("a cat")) as fake:
        asked = [build_user_message("look") | {"images": [picture]}]
        reply, _ = await ask(wire, fake, asked, stream=stream, tools=TOOLS)
        shown = build_tool_result(reply.calls[0].id, "plain", "here") | {"images": [picture]}
        await ask(wire, fake, [*asked, reply.message, shown], stream=stream, tools=TOOLS)
    assert len(fake.read(0).of("image")) == 1
    assert len(fake.read(1).of("image")) == 2


@every_wire
@both
async def test_environment_variables_arent_used_for_the_provider(
    wire: Wire, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)
    async with provider(wire, Says("ok"), Says("ok")) as fake:
        await ask(wire, fake, HI, stream=stream)
        if not wire.more.get("access_key_id"):
            await ask(wire, fake, HI, stream=stream, api_key="")
    assert "of-the-host" not in str(fake.headers)
    assert "of-the-host" not in str(fake.paths) + str(fake.raw)


@every_wire
@both
async def test_a_private_address_needs_permission(wire: Wire, stream: bool) -> None:
    async with provider(wire) as fake:
        error = await fails(wire, fake, HI, stream=stream, allow_private=False)
    assert (error.code, error.retryable, fake.requests) == ("private_address", False, [])


@every_wire
@both
async def test_a_redirect_is_refused(wire: Wire, stream: bool) -> None:
    async with provider(wire, Refuses(302, "", {"Location": "http://10.0.0.1/"})) as fake:
        error = await fails(wire, fake, HI, stream=stream)
    assert (error.code, error.retryable) == ("redirect_refused", False)


@every_wire
@both
async def test_an_endless_answer_ends_at_the_limit(wire: Wire, stream: bool) -> None:
    async with provider(wire, Refuses(200, "x" * (17 * 1024 * 1024))) as fake:
        error = await fails(wire, fake, HI, stream=stream)
    assert error.code == "response_too_large"


@every_wire
@both
@pytest.mark.parametrize("body", ["<html>a login page</html>", {}, [1], "null"])
async def test_an_invalid_response_is_an_error(wire: Wire, stream: bool, body: Any) -> None:
    async with provider(wire, Refuses(200, body)) as fake:
        # An answer that says nothing is refused by the session.
        assert await outcome(wire, fake, stream=stream) in (
            "model_bad_answer",
            "provider_error",
            "",
            None,
        )


@every_wire
@both
async def test_an_answer_that_takes_too_long_is_a_timeout(wire: Wire, stream: bool) -> None:
    async with provider(wire, Waits()) as fake:
        async with open_model(at(wire, fake)):
            pass  # the provider's library is read now, which takes longer than that
        error = await fails(wire, fake, HI, stream=stream, timeout_s=0.5)
        await asyncio.wait_for(fake.left.wait(), 10)
    assert (error.code, error.retryable) == ("model_timeout", True)


@every_wire
@both
async def test_canceling_closes_the_request_immediately(wire: Wire, stream: bool) -> None:
    async with provider(wire, Waits()) as fake:
        task = asyncio.create_task(ask(wire, fake, HI, stream=stream))
        await asyncio.wait_for(fake.arrived.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(fake.left.wait(), 5)


@every_wire
async def test_a_server_that_isnt_running_is_unreachable(wire: Wire, free_port: int) -> None:
    async with provider(wire) as fake:
        error = await fails(wire, fake, HI, base_url=f"http://127.0.0.1:{free_port}")
    assert (error.code, error.retryable) == ("model_unreachable", True)
    assert KEY not in str(error)


async def test_closing_twice_is_harmless() -> None:
    await close_models()
    await close_models()
