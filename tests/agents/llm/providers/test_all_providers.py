"""Test cases that apply to the protocols of all providers."""

import asyncio
import base64
import json
from typing import Any

import pytest

from agents.llm.interface import (
    LanguageModelRequest,
    ModelError,
    ModelReply,
    TokenUsage,
    ToolSpec,
    build_model,
    build_tool_result,
    build_user_message,
    close_models,
)
from agents.llm.provider_schemas import convert_schema
from tests.agents.llm.provider_protocols import (
    KEY,
    PROTOCOLS,
    ProviderProtocol,
    ask,
    build_endpoint,
    every_protocol,
    expect_error,
    get_text_or_error_code,
    provider,
    stream_modes,
)
from tests.agents.llm.provider_server import FakeProvider, Refuses, Says, Waits

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
# Variables that may be set in a worker's environment.
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


@every_protocol
@stream_modes
async def test_text_arrives_with_usage(protocol: ProviderProtocol, stream: bool) -> None:
    async with provider(protocol, Says("Hello there, world.")) as fake:
        reply, streamed = await ask(protocol, fake, HI, stream=stream)
    assert (reply.text, reply.calls, reply.finish) == ("Hello there, world.", (), "stop")
    assert "".join(streamed) == ("Hello there, world." if stream else "")
    assert reply.usage == TokenUsage(11, 7)


@every_protocol
async def test_instructions_and_history_are_sent(protocol: ProviderProtocol) -> None:
    async with provider(protocol, Says("ok"), Says("fine")) as fake:
        reply, _ = await ask(protocol, fake, HI)
        await ask(protocol, fake, [*HI, reply.message, build_user_message("and now?")])
    request = fake.read()
    assert request.system == "Be brief."
    assert [(message.role, message.text) for message in request.messages] == [
        ("user", "hi"),
        ("model", "ok"),
        ("user", "and now?"),
    ]


@every_protocol
@stream_modes
async def test_schemas_are_sent_in_the_providers_format(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Says("ok")) as fake:
        await ask(protocol, fake, HI, stream=stream, tools=TOOLS)
    request = fake.read()
    assert request.tools["odd"] == convert_schema(protocol.kind, SCHEMA)
    assert request.tools["odd"]["required"] == ["zebra"]
    assert request.tools["odd"]["properties"]["zebra"]["enum"] == ["a", "b"]
    assert request.tools["odd"]["properties"]["zebra"]["default"] == "a"
    assert request.tools["odd"]["properties"]["tags"]["items"] == {"type": "string"}


@every_protocol
@stream_modes
async def test_parallel_calls_have_our_own_ids(protocol: ProviderProtocol, stream: bool) -> None:
    long_arguments = json.dumps({"zebra": "z" * 100})
    calls = (
        ("same", "odd", long_arguments),
        ("same2", "plain", "{}"),
        ("same3", "odd", '{"zebra": "ü"}'),
    )
    async with provider(
        protocol, Says(calls=calls), Says("Well. ", calls=calls), Says("done")
    ) as fake:
        history = list(HI)
        for _ in range(2):  # the provider repeats its ids from turn to turn
            reply, streamed = await ask(protocol, fake, history, stream=stream, tools=TOOLS)
            history.append(json.loads(json.dumps(reply.message)))
            history += [
                build_tool_result(c.id, c.name, f"of {c.id}") for c in reversed(reply.calls)
            ]
        last, _ = await ask(protocol, fake, history, stream=stream, tools=TOOLS)
    assert [(c.index, c.name, c.arguments) for c in reply.calls] == [
        (0, "odd", {"zebra": "z" * 100}),
        (1, "plain", {}),
        (2, "odd", {"zebra": "ü"}),
    ]
    assert (reply.finish, reply.text, "".join(streamed)) == (
        "tool_calls",
        "Well. ",
        "Well. " if stream else "",
    )
    request = fake.read()
    expected = [f"t{turn:04d}c{index:03d}" for turn in (1, 2) for index in range(3)]
    assert [message.id for message in request.with_role("call")] == expected
    assert json.loads(request.with_role("call")[0].text) == {"zebra": "z" * 100}
    assert [(message.id, message.text) for message in request.with_role("result")] == [
        (id_, f"of {id_}") for id_ in expected
    ]
    assert last.text == "done"


@every_protocol
@stream_modes
async def test_a_failed_call_is_sent_as_an_error(protocol: ProviderProtocol, stream: bool) -> None:
    calls = (("x", "odd", "{}"),)
    async with provider(protocol, Says(calls=calls), Says("sorry")) as fake:
        reply, _ = await ask(protocol, fake, HI, stream=stream, tools=TOOLS)
        result = build_tool_result(reply.calls[0].id, "odd", "Not allowed.", is_error=True)
        await ask(protocol, fake, [*HI, reply.message, result], stream=stream, tools=TOOLS)
    assert "Not allowed." in fake.raw[1].decode()


@every_protocol
@stream_modes
async def test_missing_usage_stays_unknown(protocol: ProviderProtocol, stream: bool) -> None:
    zero_usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
    async with provider(protocol, Says("ok", usage=None), Says("ok", usage=zero_usage)) as fake:
        if protocol.requires_usage:
            assert (await expect_error(protocol, fake, HI, stream=stream)).code == "provider_error"
        else:
            assert (await ask(protocol, fake, HI, stream=stream))[0].usage is None
        reply, _ = await ask(protocol, fake, HI, stream=stream)
    assert (reply.text, reply.usage) == ("ok", None)


@every_protocol
@stream_modes
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
async def test_an_error_response_has_a_code_and_isnt_retried(
    protocol: ProviderProtocol, stream: bool, status: int, code: str, retryable: bool
) -> None:
    async with provider(protocol, Refuses(status, protocol.error(status, "the words"))) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream)
    assert (error.code, error.retryable) == (code, retryable)
    assert f"HTTP {status}" in str(error)
    assert "the words" in str(error)
    assert error.remedy
    assert len(fake.requests) == 1


@every_protocol
@stream_modes
async def test_retry_after_is_kept(protocol: ProviderProtocol, stream: bool) -> None:
    refusal = Refuses(429, protocol.error(429, "slow down"), {"Retry-After": "7"})
    async with provider(protocol, refusal) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream)
    assert (error.code, error.retry_after) == ("model_rate_limited", 7.0)


@every_protocol
@pytest.mark.parametrize("cut", ["closed", "ended"])
async def test_a_truncated_stream_isnt_an_answer(
    protocol: ProviderProtocol, cut: str, caplog: pytest.LogCaptureFixture
) -> None:
    reply = Says("Some text first", calls=(("x", "odd", '{"zebra": "long enough"}'),), cut=cut)
    streamed: list[str] = []

    async def listen(text: str) -> None:
        streamed.append(text)

    async with provider(protocol, reply) as fake:
        with pytest.raises(ModelError) as caught:
            await build_model(build_endpoint(protocol, fake)).request(
                LanguageModelRequest(HI, tools=TOOLS, on_text=listen)
            )
    assert (caught.value.code, caught.value.retryable) == ("model_bad_answer", True)
    assert streamed
    assert "Some text first".startswith("".join(streamed))


@every_protocol
@stream_modes
async def test_a_call_of_an_unknown_tool_is_passed_to_the_loop(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Says(calls=(("x", "no_such_tool", '{"a": 1}'),))) as fake:
        reply, _ = await ask(protocol, fake, HI, stream=stream, tools=TOOLS)
    assert [(c.name, c.arguments) for c in reply.calls] == [("no_such_tool", {"a": 1})]


@every_protocol
@pytest.mark.parametrize("arguments", ['{"a": ', "[1]", '"text"', '{"a": NaN}'])
async def test_malformed_arguments_are_returned_as_invalid(
    protocol: ProviderProtocol, arguments: str
) -> None:
    if not protocol.keeps_bad_arguments:
        arguments = '{"a": 1}'
    answer = Says(calls=(("x", "odd", arguments),))
    async with provider(protocol, answer, Says("sorry")) as fake:
        reply, _ = await ask(protocol, fake, HI, stream=True, tools=TOOLS)
        (call,) = reply.calls
        if protocol.keeps_bad_arguments:
            assert call.arguments is None
        result = build_tool_result(call.id, "odd", "Not a JSON object.", is_error=True)
        await ask(protocol, fake, [*HI, reply.message, result], stream=True, tools=TOOLS)
    # The history sent back is valid for the provider.
    assert [message.id for message in fake.read().with_role("call")] == [call.id]
    assert "Not a JSON object." in fake.raw[1].decode()


@every_protocol
@stream_modes
@pytest.mark.parametrize("finish", ["length", "content_filter"])
async def test_the_finish_reason_is_returned(
    protocol: ProviderProtocol, stream: bool, finish: str
) -> None:
    async with provider(protocol, Says("half an ans", finish=finish)) as fake:
        reply, _ = await ask(protocol, fake, HI, stream=stream)
    assert (reply.finish, reply.text) == (finish, "half an ans")


@every_protocol
@stream_modes
@pytest.mark.filterwarnings("ignore:.* is not a valid FinishReason")
async def test_an_unknown_finish_reason_keeps_the_answer(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Says("the answer", finish="some_new_reason")) as fake:
        reply, streamed = await ask(protocol, fake, HI, stream=stream)
    assert (reply.text, reply.finish) == ("the answer", "stop")
    assert "".join(streamed) == ("the answer" if stream else "")


@every_protocol
@stream_modes
async def test_an_account_without_credit_has_its_own_code(
    protocol: ProviderProtocol, stream: bool
) -> None:
    message = "Your credit balance is too low to access this API."
    async with provider(protocol, Refuses(400, protocol.error(400, message))) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream)
    assert (error.code, error.retryable) == ("model_no_credit", False)
    assert message in str(error)


@every_protocol
@stream_modes
async def test_reasoning_is_sent_back_only_to_its_provider(
    protocol: ProviderProtocol, stream: bool
) -> None:
    thinking = Says(calls=(("x", "plain", "{}"),), reasoning="I should look.")
    async with provider(protocol, thinking, Says("done"), Says("done")) as fake:
        reply, streamed = await ask(protocol, fake, HI, stream=stream, tools=TOOLS)
        stored_message = json.loads(json.dumps(reply.message))
        history = [*HI, stored_message, build_tool_result(reply.calls[0].id, "plain", "ok")]
        await ask(protocol, fake, history, stream=stream, tools=TOOLS)
        same_model_request = fake.read()
        await ask(protocol, fake, history, stream=stream, tools=TOOLS, model=f"{protocol.model}-x")
    assert (reply.text, streamed) == ("", [])
    assert reply.thinking == "I should look."
    assert same_model_request.with_role("thought")
    assert any(message.id for message in same_model_request.with_role("thought")) == protocol.signs
    assert [message.id for message in same_model_request.with_role("call")] == [reply.calls[0].id]
    assert "I should look." not in fake.raw[2].decode()
    assert fake.read().with_role("thought") == []
    assert [message.id for message in fake.read().with_role("call")] == [reply.calls[0].id]


@every_protocol
@stream_modes
async def test_images_of_users_and_tools_are_sent(protocol: ProviderProtocol, stream: bool) -> None:
    picture = {"media_type": "image/png", "data": b"\x89PNG\r\n\x1a\nnot really"}
    calls = (("x", "plain", "{}"),)
    async with provider(protocol, Says(calls=calls), Says("a cat")) as fake:
        question = [build_user_message("look") | {"images": [picture]}]
        reply, _ = await ask(protocol, fake, question, stream=stream, tools=TOOLS)
        result = build_tool_result(reply.calls[0].id, "plain", "here") | {"images": [picture]}
        await ask(protocol, fake, [*question, reply.message, result], stream=stream, tools=TOOLS)
    assert len(fake.read(0).with_role("image")) == 1
    assert len(fake.read(1).with_role("image")) == 2


@every_protocol
async def test_pdf_files_are_sent_as_documents(protocol: ProviderProtocol) -> None:
    document = {"media_type": "application/pdf", "data": b"%PDF-1.7 not really", "pages": 1}
    async with provider(protocol, Says("a report")) as fake:
        await ask(protocol, fake, [build_user_message("read") | {"documents": [document]}])
    [sent_document] = fake.read().with_role("document")
    assert sent_document.text.endswith(base64.b64encode(document["data"]).decode())


@every_protocol
@stream_modes
async def test_environment_variables_arent_used_for_the_provider(
    protocol: ProviderProtocol, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in AMBIENT.items():
        monkeypatch.setenv(name, value)
    async with provider(protocol, Says("ok"), Says("ok")) as fake:
        await ask(protocol, fake, HI, stream=stream)
        if not protocol.more.get("access_key_id"):
            await ask(protocol, fake, HI, stream=stream, api_key="")
    assert "of-the-host" not in str(fake.headers)
    assert "of-the-host" not in str(fake.paths) + str(fake.raw)


@every_protocol
@stream_modes
async def test_a_private_address_needs_permission(protocol: ProviderProtocol, stream: bool) -> None:
    async with provider(protocol) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream, allow_private=False)
    assert (error.code, error.retryable, fake.requests) == ("private_address", False, [])


@every_protocol
@stream_modes
async def test_a_redirect_is_refused(protocol: ProviderProtocol, stream: bool) -> None:
    async with provider(protocol, Refuses(302, "", {"Location": "http://10.0.0.1/"})) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream)
    assert (error.code, error.retryable) == ("redirect_denied", False)


@every_protocol
@stream_modes
async def test_an_endless_answer_ends_at_the_limit(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Refuses(200, "x" * (17 * 1024 * 1024))) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream)
    assert error.code == "response_too_large"


@every_protocol
@stream_modes
@pytest.mark.parametrize("body", ["<html>a login page</html>", {}, [1], "null"])
async def test_an_invalid_response_is_an_error(
    protocol: ProviderProtocol, stream: bool, body: Any
) -> None:
    async with provider(protocol, Refuses(200, body)) as fake:
        # Sessions refuse an empty answer.
        assert await get_text_or_error_code(protocol, fake, stream=stream) in (
            "model_bad_answer",
            "provider_error",
            "",
            None,
        )


@every_protocol
@stream_modes
async def test_an_answer_that_takes_too_long_is_a_timeout(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Says("ok")) as fake:
        # Some libraries import parts at their first request, which takes longer than the timeout.
        await ask(protocol, fake, HI, stream=stream)
    async with provider(protocol, Waits()) as fake:
        error = await expect_error(protocol, fake, HI, stream=stream, timeout_s=0.5)
        await fake.wait_until_abandoned()
    assert (error.code, error.retryable) == ("model_timeout", True)


@every_protocol
@stream_modes
async def test_canceling_closes_the_request_immediately(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Waits()) as fake:
        task = asyncio.create_task(ask(protocol, fake, HI, stream=stream))
        await asyncio.wait_for(fake.request_received.wait(), 30)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(fake.client_left.wait(), 5)


@every_protocol
async def test_a_server_that_isnt_running_is_unreachable(
    protocol: ProviderProtocol, free_port: int
) -> None:
    async with provider(protocol) as fake:
        error = await expect_error(protocol, fake, HI, base_url=f"http://127.0.0.1:{free_port}")
    assert (error.code, error.retryable) == ("model_unreachable", True)
    assert KEY not in str(error)


async def test_closing_twice_is_harmless() -> None:
    await close_models()
    await close_models()


OUTPUT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"count": {"type": "integer", "minimum": 1}},
    "required": ["count"],
    "additionalProperties": False,
}


async def request_output(
    protocol: ProviderProtocol, fake: FakeProvider, stream: bool, **more: Any
) -> ModelReply:
    async def ignore_text(text: str) -> None:
        del text

    return await build_model(build_endpoint(protocol, fake)).request(
        LanguageModelRequest(
            HI, output_schema=OUTPUT_SCHEMA, on_text=ignore_text if stream else None, **more
        )
    )


@every_protocol
@stream_modes
async def test_an_output_schema_is_sent_in_the_form_of_the_api(
    protocol: ProviderProtocol, stream: bool
) -> None:
    async with provider(protocol, Says('{"count": 3}')) as fake:
        reply = await request_output(protocol, fake, stream)
        assert reply.text == '{"count": 3}'
        sent = json.dumps(fake.requests[0]).replace("\\", "")
        assert '"count"' in sent
        assert '"required":' in sent.replace(" ", "")


@every_protocol
async def test_a_rejected_output_schema_is_left_out(protocol: ProviderProtocol) -> None:
    refusal = Refuses(400, protocol.error(400, "Unsupported schema."))
    async with provider(protocol, refusal, Says('{"count": 3}')) as fake:
        reply = await request_output(protocol, fake, stream=True)
        assert reply.text == '{"count": 3}'
        assert '"count' in json.dumps(fake.requests[0]).replace("\\", "")
        assert '"required' not in json.dumps(fake.requests[1]).replace("\\", "")


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=str)
async def test_an_output_schema_with_tools_is_sent_where_calls_stay_possible(
    protocol: ProviderProtocol,
) -> None:
    async with provider(protocol, Says("hi")) as fake:
        await request_output(protocol, fake, stream=True, tools=TOOLS[1:])
        is_sent = '"count' in json.dumps(fake.requests[0]).replace("\\", "")
        assert is_sent == (protocol.kind != "openai")
