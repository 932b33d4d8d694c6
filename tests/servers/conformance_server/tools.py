"""The tools that answer on their own, and those that send requests to the client in either era."""

import asyncio
from typing import Any

from tests.servers.conformance_server.calls import (
    PNG,
    STRING,
    WAV,
    Call,
    Json,
    build_input_schema,
    build_tool_error,
    form,
    sampling,
    text,
    tool,
)

PAUSE_S = 0.05
ADDRESS: Json = {
    "$anchor": "addressDef",
    "type": "object",
    "properties": {"street": STRING, "city": STRING},
}
# The suite's own schema: it checks that each keyword is preserved.
KEYWORDS: Json = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {"address": ADDRESS},
    "properties": {
        "name": STRING,
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": STRING,
        "email": STRING,
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
DEFAULTS: Json = {
    "name": {"type": "string", "default": "John Doe"},
    "age": {"type": "integer", "default": 30},
    "score": {"type": "number", "default": 95.5},
    "status": {
        "type": "string",
        "enum": ["active", "inactive", "pending"],
        "default": "active",
    },
    "verified": {"type": "boolean", "default": True},
}


def _titled(*names: str) -> list[Json]:
    return [{"const": name, "title": name.title()} for name in names]


ENUMS: Json = {
    "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
    "titledSingle": {"type": "string", "oneOf": _titled("value1", "value2", "value3")},
    "legacyEnum": {
        "type": "string",
        "enum": ["opt1", "opt2", "opt3"],
        "enumNames": ["Option One", "Option Two", "Option Three"],
    },
    "untitledMulti": {
        "type": "array",
        "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
    },
    "titledMulti": {"type": "array", "items": {"anyOf": _titled("value1", "value2", "value3")}},
}
IMAGE: Json = {"type": "image", "data": PNG, "mimeType": "image/png"}


def embedded(uri: str, mime: str, content: str) -> Json:
    """Return a block with a resource in it."""
    return {"type": "resource", "resource": {"uri": uri, "mimeType": mime, "text": content}}


@tool(annotations={"readOnlyHint": True})
async def test_simple_text(call: Call) -> Json:
    """Return a text."""
    return text("This is a simple text response for testing.")


@tool()
async def test_image_content(call: Call) -> Json:
    """Return an image."""
    return {"content": [IMAGE]}


@tool()
async def test_audio_content(call: Call) -> Json:
    """Return a sound."""
    return {"content": [{"type": "audio", "data": WAV, "mimeType": "audio/wav"}]}


@tool()
async def test_embedded_resource(call: Call) -> Json:
    """Return a resource in a block."""
    content = "This is an embedded resource content."
    return {"content": [embedded("test://embedded-resource", "text/plain", content)]}


@tool()
async def test_multiple_content_types(call: Call) -> Json:
    """Return a text, an image and a resource."""
    resource = embedded(
        "test://mixed-content-resource", "application/json", '{"test":"data","value":123}'
    )
    return {"content": [*text("Multiple content types test:")["content"], IMAGE, resource]}


@tool(
    outputSchema={
        "type": "object",
        "properties": {"sum": {"type": "integer"}},
        "required": ["sum"],
    },
    _meta={"example.com/kept": "of the definition"},
)
async def test_structured_content(call: Call) -> Json:
    """Return a structured result with an annotation of our own."""
    answer: Json = {"structuredContent": {"sum": 3}, "_meta": {"example.com/kept": "of the result"}}
    return {**text('{"sum":3}'), **answer}


@tool()
async def test_error_handling(call: Call) -> Json:
    """Fail."""
    return build_tool_error("This tool intentionally returns an error for testing")


@tool()
async def test_tool_with_logging(call: Call) -> Json:
    """Log three times."""
    for message in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await call.log(message)
        await asyncio.sleep(PAUSE_S)
    return text("Tool with logging executed successfully")


@tool()
async def test_logging_tool(call: Call) -> Json:
    """Log once, for who asked for that."""
    await call.log("This is for who wants to know")
    return text("Logged")


@tool()
async def test_tool_with_progress(call: Call) -> Json:
    """Report progress three times."""
    for done in (0, 50, 100):
        await call.context.session.report_progress(done, 100, f"Completed step {done} of 100")
        await asyncio.sleep(PAUSE_S)
    return text("Tool with progress executed successfully")


@tool(build_input_schema(key=STRING))
async def test_waiting(call: Call) -> Json:
    """Answer never; `test_outcome` tells what became of it."""
    key = call.arguments["key"]
    _outcomes[key] = "running"
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        _outcomes[key] = "cancelled"
        raise
    return text("never")


@tool(build_input_schema(key=STRING))
async def test_outcome(call: Call) -> Json:
    """Tell what became of a `test_waiting`."""
    return text(_outcomes.get(call.arguments["key"], "unknown"))


@tool()
async def test_missing_capability(call: Call) -> Json:
    """Answer only who declared sampling."""
    call.require("sampling")
    return text("The caller's model may be asked")


@tool()
async def test_reconnection(call: Call) -> Json:
    """Close the stream of a call of the handshake era, where the server may."""
    if close := call.context.close_sse_stream:
        await close()
    return text("Reconnection test completed")


@tool(KEYWORDS)
async def json_schema_2020_12_tool(call: Call) -> Json:
    """Take arguments of a schema that uses many keywords."""
    return text(f"Called with {sorted(call.arguments)}")


def _mirrored(kind: str, header: str) -> Json:
    return {"type": kind, "x-mcp-header": header}


@tool(
    {
        "type": "object",
        "properties": {
            "region": _mirrored("string", "Region"),
            "count": _mirrored("integer", "Count"),
        },
        "required": ["region"],
    }
)
async def test_mirrored_headers(call: Call) -> Json:
    """Take two arguments that travel as headers too."""
    return text(f"{call.arguments['region']} x {call.arguments.get('count', 1)}")


@tool(build_input_schema(prompt=STRING))
async def test_sampling(call: Call) -> Json:
    """Ask the caller's model."""
    answers = await call.ask(answer=sampling(call.arguments["prompt"]))
    return text(f"LLM response: {answers['answer']['content'].get('text', '')}")


@tool(build_input_schema(message=STRING))
async def test_elicitation(call: Call) -> Json:
    """Ask a person."""
    request = form(call.arguments["message"], username=STRING, email=STRING)
    return _build_response_text(await call.ask(answer=request))


@tool()
async def test_elicitation_sep1034_defaults(call: Call) -> Json:
    """Ask a person, with defaults for every primitive type."""
    request = form("Please review and update the form fields with defaults", **DEFAULTS)
    del request["params"]["requestedSchema"]["required"]
    return _build_response_text(await call.ask(answer=request))


@tool()
async def test_elicitation_sep1330_enums(call: Call) -> Json:
    """Ask a person to choose, in every way in which that can be asked."""
    request = form("Please select options from the enum fields", **ENUMS)
    del request["params"]["requestedSchema"]["required"]
    return _build_response_text(await call.ask(answer=request))


@tool()
async def test_streaming_elicitation(call: Call) -> Json:
    """Report progress, then ask a person."""
    await call.context.session.report_progress(1, 2, "About to ask")
    request = form("What is your name?", name=STRING)
    return _build_response_text(await call.ask(answer=request))


def _build_response_text(answers: Any) -> Json:
    answer = answers["answer"]
    return text(f"User response: {answer.get('action')}, {answer.get('content')}")


_outcomes: dict[str, str] = {}
