"""The resources, templates, prompts and completions of the server."""

import hashlib
import json
import re
from typing import Any

import mcp_types as types
from mcp import MCPError

from tests.servers.conformance_server.calls import (
    PNG,
    STRING,
    Call,
    Context,
    InputRequired,
    Json,
    form,
)
from tests.servers.conformance_server.tools import IMAGE, embedded

STATIC: dict[str, tuple[str, Json]] = {
    "test://static-text": (
        "text/plain",
        {"text": "This is the content of the static text resource."},
    ),
    "test://static-binary": ("image/png", {"blob": PNG}),
    "test://watched-resource": ("text/plain", {"text": "Watched resource content"}),
}
SKILL_URI = "skill://acme/git-workflow/SKILL.md"
SKILL_TEXTS = {"name": "git-workflow", "description": "How this team uses branches and commits"}
SKILL_FILES = {
    SKILL_URI: "---\n{}\n---\n\nRead [the rules](references/RULES.md).\n".format(
        "\n".join(f"{name}: {text}" for name, text in SKILL_TEXTS.items())
    ),
    SKILL_URI.replace("SKILL.md", "references/RULES.md"): "One commit for one change.\n",
}
SKILL: Json = {
    "uri": SKILL_URI,
    "frontmatter": SKILL_TEXTS,
    "resources": [
        {
            "uri": uri,
            "digest": f"sha256:{hashlib.sha256(content.encode()).hexdigest()}",
            "size": len(content.encode()),
        }
        for uri, content in SKILL_FILES.items()
    ],
}
HINTS = {"ttlMs": 60_000, "cacheScope": "public"}
TEMPLATE = re.compile(r"test://template/([^/]+)/data")
PROMPTS: dict[str, tuple[str, ...]] = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
WORDS = ("paris", "park", "party", "test", "testing")


def resources() -> list[types.Resource]:
    """Return the resources with fixed URIs."""
    return [
        *(
            types.Resource(uri=uri, name=uri.partition("://")[2], description=uri, mime_type=mime)
            for uri, (mime, _) in STATIC.items()
        ),
        types.Resource(uri=SKILL_URI, mime_type="text/markdown", **SKILL_TEXTS),
    ]


def templates() -> list[types.ResourceTemplate]:
    """Return the templates."""
    return [
        types.ResourceTemplate(
            uri_template="test://template/{id}/data",
            name="template",
            description="Data by its number",
            mime_type="application/json",
        )
    ]


async def read(context: Context, params: types.ReadResourceRequestParams) -> Json:
    """Return the resource at a URI."""
    uri = str(params.uri)
    if static := STATIC.get(uri):
        return {"contents": [{"uri": uri, "mimeType": static[0], **static[1]}]}
    if uri in SKILL_FILES:
        return {"contents": [{"uri": uri, "mimeType": "text/markdown", "text": SKILL_FILES[uri]}]}
    if match := TEMPLATE.fullmatch(uri):
        data = {"id": match[1], "templateTest": True, "data": f"Data for ID: {match[1]}"}
        content = {"uri": uri, "mimeType": "application/json", "text": json.dumps(data)}
        return {"contents": [content]}
    modern = Call(context, {}).modern
    raise MCPError(-32602 if modern else -32002, "Resource not found", {"uri": uri})


async def list_skills(context: Context, params: Any) -> Json:
    """Return the skill (SEP-2640)."""
    return {"skills": [SKILL], **HINTS}


async def get_skill(context: Context, params: types.ReadResourceRequestParams) -> Json:
    """Return the skill with a URI."""
    if str(params.uri) != SKILL_URI:
        raise MCPError(-32602, "Skill not found", {"uri": str(params.uri)})
    return {"skill": SKILL, **HINTS}


def prompts() -> list[types.Prompt]:
    """Return the prompts."""
    return [
        types.Prompt(
            name=name,
            description=name.replace("_", " "),
            arguments=[
                types.PromptArgument(name=argument, required=True) for argument in arguments
            ],
        )
        for name, arguments in PROMPTS.items()
    ]


async def prompt(context: Context, params: types.GetPromptRequestParams) -> Json:
    """Return a prompt, filled in."""
    call = Call.of(context, params)
    missing = [name for name in PROMPTS.get(params.name, ()) if name not in call.arguments]
    if params.name not in PROMPTS or missing:
        raise MCPError(types.INVALID_PARAMS, "Unknown prompt or missing arguments")
    try:
        blocks = await _blocks(params.name, call)
    except InputRequired as required:
        return required.result()
    return {"messages": [{"role": "user", "content": block} for block in blocks]}


async def _blocks(name: str, call: Call) -> list[Json]:
    arguments = call.arguments
    if name == "test_prompt_with_arguments":
        filled = f"Prompt with arguments: arg1='{arguments['arg1']}', arg2='{arguments['arg2']}'"
        return [_build_text(filled)]
    if name == "test_prompt_with_embedded_resource":
        content = "Embedded resource content for testing."
        block = embedded(arguments["resourceUri"], "text/plain", content)
        return [block, _build_text("Please process the embedded resource above.")]
    if name == "test_prompt_with_image":
        return [IMAGE, _build_text("Please analyze the image above.")]
    if name == "test_input_required_result_prompt":
        request = form("What context should the prompt use?", context=STRING)
        answers = await call.ask(user_context=request)
        context = (answers["user_context"].get("content") or {}).get("context")
        return [_build_text(f"In the context of {context}")]
    return [_build_text("This is a simple prompt for testing.")]


def _build_text(text: str) -> Json:
    return {"type": "text", "text": text}


async def complete(context: Context, params: types.CompleteRequestParams) -> Json:
    """Return the words that begin as the argument does."""
    values = [word for word in WORDS if word.startswith(params.argument.value)]
    completion: dict[str, Any] = {"values": values, "total": len(values), "hasMore": False}
    return {"completion": completion}
