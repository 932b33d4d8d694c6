"""The offline model: rules that run typed commands, and calls that a message clearly asks for.

It makes a new installation usable without a network or a key, and says that it isn't a language
model. A turn either calls tools or shows their results.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any

from agents.llm.interface import (
    Finish,
    LanguageModelRequest,
    Message,
    ModelError,
    ModelReply,
    TokenUsage,
    ToolCall,
    ToolSpec,
    build_assistant_message,
    build_call_id,
)
from agents.llm.message_order import get_next_turn, order_messages
from agents.llm.offline.choose_tool import (
    ToolChoice,
    build_sample_arguments,
    choose_tools,
    fill_arguments,
)
from agents.llm.token_estimates import count_tokens, estimate_tokens, truncate_text
from mcp_servers.scanning.active_content import restore_escaped_markup
from mcp_servers.schemas import InvalidArguments, SubprocessNeeded, is_valid_for_schema

MAX_RESULT_LENGTH = 4_000  # characters of one result
MAX_LINES = 60  # of an unpacked result
MAX_DEPTH = 5
MAX_LISTED_TOOLS = 12  # tools in an introduction

INTRODUCTION = (
    "I am the offline model: rules that choose a tool, not a language model. I need no network and "
    "no key, and I can't chat, reason, or write."
)
USAGE = (
    "Ask for one thing that a tool does, or enter the call yourself, one line each:\n\n"
    "    {example}\n\n"
    "`/tools` lists all tools, `/tools WORD` those about something."
)
FOOTNOTE = "(Offline model: rules, not a language model. This is what the tools returned.)"
NO_TOOLS = (
    "This agent has no tools that it may use, so there is nothing that I can do yet. Attach a "
    "server to it, approve the server's tools, and allow them in its policy; or choose a language "
    "model."
)
# What could link, embed or break the layout, or would be shown as something else.
MARKUP = re.compile(r"[\[\]<>|]|\n|^#|&#?\w+;|\*\*|~~|__")
MAX_SCHEMA_DEPTH = 8
MAX_ITEMS = 8
_SIMPLE_VALUES: Mapping[str, Any] = {"boolean": False, "null": None}
CHUNK_LENGTH = 40  # characters that are streamed at once, about
COMMAND_START = re.compile(r"^[ \t]*/([A-Za-z0-9_.-]{1,128})(?=[ \t{\n]|$)[ \t]*", re.M)
OWN_COMMANDS = ("help", "tools")
SHORT_NAME = re.compile(r"[A-Za-z0-9_.-]{1,128}")
MAX_COMMANDS = 50


def shorten_names(tools: Sequence[ToolSpec]) -> tuple[ToolSpec, ...]:
    """Return the tools; own names that aren't usable as commands are empty."""
    by_ending: dict[str, list[str]] = {}
    for tool in tools:
        for underscore in re.finditer("_", tool.name):
            by_ending.setdefault(tool.name[underscore.end() :], []).append(tool.name)
    names = {tool.name for tool in tools} | set(OWN_COMMANDS)
    return tuple(
        tool
        if SHORT_NAME.fullmatch(tool.own_name)
        and (tool.own_name == tool.name or tool.own_name not in names)
        and find_tool_name(tool.own_name, by_ending.get(re.sub(r"\W", "_", tool.own_name), ()))
        == tool.name
        else replace(tool, own_name="")
        for tool in tools
    )


def render_results(
    calls: Sequence[Message], results: Sequence[Message], tools: Sequence[ToolSpec] = ()
) -> str:
    """Return the results of a turn's calls, in order."""
    calls_by_id = {call["id"]: call for call in calls}
    titles = {tool.name: _render_title(tool) for tool in tools if tool.own_name}
    return "\n\n".join(
        _render_result(
            titles.get(result["name"], f"`{result['name']}`"),
            calls_by_id.get(result["call_id"], {}),
            result,
        )
        for result in results
    )


def render_missing_arguments(choice: ToolChoice) -> str:
    """Return which arguments the message didn't have, with the command to type."""
    names = " and ".join(f"`{name}`" for name in choice.missing)
    known_arguments = choice.arguments[0] if choice.arguments else {}
    return (
        f"To call {_render_title(choice.tool)}, I also need {names}. "
        "Enter the call with your values:\n\n"
        f"    {render_command(choice.tool, known_arguments)}"
    )


def render_introduction(tools: Sequence[ToolSpec]) -> str:
    """Return an introduction with the tools."""
    if not tools:
        return f"{INTRODUCTION}\n\n{NO_TOOLS}"
    usage = USAGE.format(example=render_command(tools[0], {}))
    return f"{INTRODUCTION}\n\n{usage}\n\n{render_tools(tools)}"


def render_no_match(tools: Sequence[ToolSpec], possible: Sequence[ToolSpec]) -> str:
    """Return that no tool was chosen, with those that may be meant."""
    if not possible:
        return render_introduction(tools)
    lines = "\n".join(f"    {render_command(tool, {})}" for tool in possible[:MAX_LISTED_TOOLS])
    return f"Several tools match. Enter one of these calls with your values:\n\n{lines}"


def render_tools(tools: Sequence[ToolSpec], word: str = "", limit: int = MAX_LISTED_TOOLS) -> str:
    """Return a list of tools with a sentence each; `word` filters them."""
    matching_tools = [
        tool for tool in tools if word.lower() in f"{tool.name} {tool.description}".lower()
    ]
    if not matching_tools:
        return f"No tool is about `{word}`." if word else NO_TOOLS
    lines = [_render_tool(tool) for tool in matching_tools[:limit]]
    if len(matching_tools) > limit:
        lines.append(f"- … and {len(matching_tools) - limit} more")
    return "Tools:\n\n" + "\n".join(lines)


def render_command(tool: ToolSpec, known_arguments: Mapping[str, Any]) -> str:
    """Return the command that calls a tool, with samples of unknown required arguments."""
    arguments = build_sample_arguments(tool) | dict(known_arguments)
    return f"/{_get_command_name(tool)} {json.dumps(arguments, ensure_ascii=False)}"


def _get_command_name(tool: ToolSpec) -> str:
    return tool.own_name or tool.name


def _render_title(tool: ToolSpec) -> str:
    """Return the name of a tool in a sentence, with its server."""
    server = f" on {_escape_markup(tool.server_name)}" if tool.server_name else ""
    return f"`{tool.own_name}`{server}" if tool.own_name else f"`{tool.name}`"


def _render_tool(tool: ToolSpec) -> str:
    summary = _extract_first_sentence(tool.description)
    return f"- `/{_get_command_name(tool)}`{f': {summary}' if summary else ''}"


def _extract_first_sentence(text: str) -> str:
    line = next((line.strip() for line in text.splitlines() if line.strip()), "")
    sentence = re.split(r"(?<=[.!?])\s", line)[0].rstrip(".")
    return _escape_markup(sentence if len(sentence) <= 120 else sentence[:119] + "…")


def _render_result(name: str, call: Message, result: Message) -> str:
    arguments = call.get("arguments") or {}
    formatted_arguments = ", ".join(
        f"{key}: {_format_value(value)}" for key, value in arguments.items()
    )
    prefix = f"{name} ({formatted_arguments})" if formatted_arguments else name
    text = result["text"].strip()
    if result["is_error"]:
        # Problems of our own have code spans, which are harmless.
        # They name the tool as the model does; people know it by its own name.
        text = text.replace(f"`{result['name']}`", name.partition(" on ")[0])
        reason = _escape_markup(text[:MAX_RESULT_LENGTH], keeps_code=True)
        verb = "was denied" if result.get("is_denied") else "failed"
        return f"{prefix} {verb}: {reason or 'no reason was given.'}"
    if not text:
        return f"{prefix} returned nothing."
    value = _parse_json(text)
    if isinstance(value, dict | list) and value:
        return f"{prefix} answered:\n\n{_render_bounded_lines(value)}"
    if isinstance(value, str):
        text = value
    if "\n" not in text and len(text) <= 300:
        return f"{prefix} answered: {_escape_markup(text)}"
    return f"{prefix} answered:\n\n{_render_code_block(text)}"


def _render_code_block(text: str) -> str:
    visible_text = restore_escaped_markup(text[:MAX_RESULT_LENGTH])
    ticks = max((len(run) for run in re.findall(r"`{3,}", visible_text)), default=2) + 1
    note = (
        f"\n\n(… and {len(text) - MAX_RESULT_LENGTH:,} more characters)"
        if len(text) > MAX_RESULT_LENGTH
        else ""
    )
    return f"{'`' * ticks}\n{visible_text}\n{'`' * ticks}{note}"


def _render_bounded_lines(value: Any) -> str:
    lines: list[str] = []
    size = 0
    for line in _render_lines(value, 0):
        size += len(line) + 1
        if len(lines) == MAX_LINES or size > MAX_RESULT_LENGTH:
            return "\n".join([*lines, "- …"])
        lines.append(line)
    return "\n".join(lines)


def _render_lines(value: Any, depth: int) -> Iterator[str]:
    """Yield JSON as an indented list; small values stay on one line."""
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        label = "" if key is None else f"{_escape_markup(str(key).replace('_', ' '))}: "
        nested = isinstance(item, dict | list) and item
        if not nested or depth >= MAX_DEPTH or _is_small(item):
            yield f"{'  ' * depth}- {label}{_format_value(item)}"
        else:
            yield f"{'  ' * depth}- {label.rstrip()}" if label else f"{'  ' * depth}-"
            yield from _render_lines(item, depth + 1)


def _is_small(value: dict[str, Any] | list[Any]) -> bool:
    items = list(value.values()) if isinstance(value, dict) else value
    is_flat = not any(isinstance(item, dict | list) for item in items)
    return is_flat and len(items) <= 6 and sum(len(str(item)) for item in items) <= 100


def _format_value(value: Any) -> str:
    if isinstance(value, str):
        return _escape_markup(value if len(value) <= 300 else value[:299] + "…")
    if isinstance(value, list) and not any(isinstance(item, dict | list) for item in value):
        text = ", ".join(_format_value(item) for item in value[:20])
        return (text if len(value) <= 20 else text + ", …") or "none"
    if isinstance(value, dict) and value and _is_small(value):
        return ", ".join(f"{key}: {_format_value(item)}" for key, item in value.items())
    text = json.dumps(value, ensure_ascii=False)
    return _escape_markup(text if len(text) <= 300 else text[:299] + "…")


def _escape_markup(text: str, *, keeps_code: bool = False) -> str:
    """Escape a server's text so that its markup has no effect and is shown as it is."""
    if not MARKUP.search(text) and (keeps_code or "`" not in text):
        return text
    text = restore_escaped_markup(" ".join(text.split()))
    ticks = "`" * (max((len(run) for run in re.findall(r"`+", text)), default=0) + 1)
    pad = " " if "`" in text else ""
    return f"{ticks}{pad}{text}{pad}{ticks}"


def _parse_json(text: str) -> Any:
    if text[:1] not in ("{", "[", '"'):
        return None
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


class _UnsupportedSchema(ValueError):
    """The schema isn't simple enough."""


def render_output(schema: Mapping[str, Any], text: str) -> str:
    """Return JSON that matches the schema, with `text` as its strings.

    Raises `ModelError` if the schema isn't simple enough.
    """
    try:
        value = _build_value(schema, text, 0)
        if is_valid_for_schema(dict(schema), value):
            return json.dumps(value, ensure_ascii=False)
    except (_UnsupportedSchema, InvalidArguments, SubprocessNeeded):
        pass
    raise ModelError(
        "The offline model can't produce a value for this output schema.",
        code="model_no_answer",
        remedy="Simplify the output schema, or choose another model.",
        retryable=False,
    )


def _build_value(schema: Any, text: str, depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        raise _UnsupportedSchema
    given_values = [schema[keyword] for keyword in ("const", "default") if keyword in schema]
    if choices := [*given_values, *schema.get("enum", ())]:
        return choices[0]
    kind = schema.get("type", "string")
    if kind in _SIMPLE_VALUES:
        return _SIMPLE_VALUES[kind]
    if kind == "string":
        shortened = text[: schema.get("maxLength", len(text))]
        return shortened.ljust(min(schema.get("minLength", 0), 1_000), ".")
    if kind in ("integer", "number"):
        return _build_number(schema)
    if kind == "object":
        properties = schema.get("properties", {})
        return {name: _build_value(child, text, depth + 1) for name, child in properties.items()}
    count = schema.get("minItems", 0)
    if kind != "array" or count > MAX_ITEMS:
        raise _UnsupportedSchema
    return [_build_value(schema.get("items", {}), text, depth + 1) for _ in range(count)]


def _build_number(schema: Mapping[str, Any]) -> float:
    least, most = schema.get("minimum", 0), schema.get("maximum")
    if "exclusiveMinimum" in schema:
        least = max(least, schema["exclusiveMinimum"] + 1)
    number: float = least if most is None or least <= most else most
    return number


@dataclass(frozen=True)
class Command:
    """A typed command: a tool with its arguments, or with text to find them in."""

    name: str
    arguments: dict[str, Any] | None
    free_text: str
    is_known: bool


class CommandSyntaxError(ValueError):
    """A command that can't be parsed; the message says where and why."""


def parse_commands(text: str, names: Sequence[str]) -> list[Command]:
    """Return the commands of a message, in order; empty if there are none.

    Raises `CommandSyntaxError` if any is invalid; then none should run.
    """
    commands: list[Command] = []
    position = 0
    while match := COMMAND_START.search(text, position):
        command, position = _parse_command(text, match, names)
        if command.is_known or command.arguments is not None or command.name in OWN_COMMANDS:
            commands.append(command)
            if len(commands) > MAX_COMMANDS:
                raise CommandSyntaxError(f"These are more than {MAX_COMMANDS} calls at once.")
        elif text.strip() == match.group().strip():
            raise CommandSyntaxError(_format_unknown_tool(command.name, names))
    return commands


def find_tool_name(name: str, names: Sequence[str]) -> str:
    """Return the tool of a typed name: an exact match, else the only one that ends in it."""
    if name in names:
        return name
    normalized_name = re.sub(r"\W", "_", name)
    matches = [
        candidate for candidate in names if candidate.endswith((f"_{name}", f"_{normalized_name}"))
    ]
    return matches[0] if len(matches) == 1 else name


def find_close_names(name: str, names: Sequence[str]) -> list[str]:
    """Return the tools with similar names, the most similar first."""
    names_by_ending = {candidate.rpartition("_")[2]: candidate for candidate in names}
    close_names = get_close_matches(name, names, n=3, cutoff=0.75)
    return close_names or [
        names_by_ending[ending]
        for ending in get_close_matches(name, names_by_ending, n=3, cutoff=0.75)
    ]


def _parse_command(text: str, match: re.Match[str], names: Sequence[str]) -> tuple[Command, int]:
    name = find_tool_name(match.group(1), names)
    position = match.end()
    line_end = text.find("\n", position) % (len(text) + 1)
    if text[position : position + 1] != "{":
        return Command(name, None, text[position:line_end].strip(), name in names), line_end
    try:
        arguments, end = json.JSONDecoder(parse_constant=_reject_constant).raw_decode(
            text, position
        )
    except (ValueError, RecursionError) as error:
        raise CommandSyntaxError(_format_json_error(text, position, name, error)) from error
    line_end = text.find("\n", end) % (len(text) + 1)
    trailing_text = text[end:line_end].strip()
    if trailing_text:
        raise CommandSyntaxError(
            f"Line {_count_line_number(text, end)}: "
            f"there is text after the JSON of `/{name}`: `{trailing_text[:80]}`."
        )
    return Command(name, arguments, "", name in names), line_end


def _format_json_error(text: str, position: int, name: str, error: Exception) -> str:
    location = f"Line {_count_line_number(text, position)}"
    if isinstance(error, json.JSONDecodeError):
        location = f"Line {error.lineno}, column {error.colno}"
        return f"{location}: the arguments of `/{name}` are not JSON ({error.msg.lower()})."
    return f"{location}: the arguments of `/{name}` are not JSON ({error})."


def _format_unknown_tool(name: str, names: Sequence[str]) -> str:
    close_names = find_close_names(name, names)
    hint = (
        " Did you mean " + " or ".join(f"`/{candidate}`" for candidate in close_names) + "?"
        if close_names
        else ""
    )
    return f"There is no tool named `{name}`.{hint} To list the tools, enter `/tools`."


def _count_line_number(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


def _reject_constant(name: str) -> None:
    raise ValueError(f"{name} isn't a JSON value")


@dataclass
class OfflineAnswer:
    """The text and the calls of a turn."""

    text: str = ""
    calls: list[tuple[str, dict[str, Any]]] = field(default_factory=list)


class OfflineModel:
    """Rules instead of a language model; implements `agents.llm.interface.LanguageModel`."""

    async def request(self, request: LanguageModelRequest) -> ModelReply:
        """Answer from the conversation; the text is streamed in pieces."""
        # Hundreds of definitions would block the event loop.
        reply = await asyncio.to_thread(_build_reply, request)
        if request.on_text is not None:
            for piece in split_text(reply.text):
                await request.on_text(piece)
        return reply


def split_text(text: str) -> Iterator[str]:
    """Yield a text in pieces that end between words."""
    piece = ""
    for word in re.findall(r"\s*\S+|\s+$", text):
        if piece and len(piece) + len(word) > CHUNK_LENGTH:
            yield piece
            piece = ""
        piece += word
    if piece:
        yield piece


def _build_reply(request: LanguageModelRequest) -> ModelReply:
    messages, instructions, tools = request.messages, request.instructions, tuple(request.tools)
    turn = get_next_turn(messages)
    answer = _answer_messages(order_messages(messages), instructions, tools)
    calls = tuple(
        ToolCall(
            index,
            name=name,
            arguments=arguments,
            raw_arguments=json.dumps(arguments),
            id=build_call_id(turn, index),
        )
        for index, (name, arguments) in enumerate(answer.calls)
    )
    if request.output_schema and not calls:
        answer.text = render_output(request.output_schema, answer.text)
    finish: Finish = "tool_calls" if calls else "stop"
    text, output_tokens = answer.text, _count_answer_tokens(answer.text, calls)
    if request.max_tokens is not None and output_tokens > request.max_tokens:
        text, calls, finish = truncate_text(text, request.max_tokens), (), "length"
        output_tokens = _count_answer_tokens(text, calls)
    return ModelReply(
        text=text,
        calls=calls,
        usage=TokenUsage(estimate_tokens(messages, instructions, tools), output_tokens),
        finish=finish,
        message=build_assistant_message(turn, text, calls),
    )


def _answer_messages(
    messages: list[Message], instructions: str, tools: tuple[ToolSpec, ...]
) -> OfflineAnswer:
    """Show the results of the last turn, and answer what the person has written since."""
    last_turn = max(
        (index for index, message in enumerate(messages) if message["role"] == "assistant"),
        default=-1,
    )
    new_messages = messages[last_turn + 1 :]
    user_text = "\n".join(message["text"] for message in new_messages if message["role"] == "user")
    results = [message for message in new_messages if message["role"] == "tool"]
    answer = OfflineAnswer()
    if user_text.strip():
        answer = _answer_user_text(user_text, instructions, shorten_names(tools))
    elif not results:
        answer.text = render_introduction(shorten_names(tools))
    if results:
        rendered_results = render_results(messages[last_turn]["calls"], results, tools)
        if not any(message["role"] == "tool" for message in messages[:last_turn]):
            rendered_results = f"{rendered_results}\n\n{FOOTNOTE}"
        answer.text = f"{rendered_results}\n\n{answer.text}".strip()
    return answer


def _answer_user_text(
    user_text: str, instructions: str, tools: tuple[ToolSpec, ...]
) -> OfflineAnswer:
    """Run typed commands, or call the tool that the words ask for."""
    try:
        commands = parse_commands(user_text, [tool.name for tool in tools])
    except CommandSyntaxError as error:
        return OfflineAnswer(text=f"{error}\n\nNothing was run.")
    if commands:
        return _run_commands(commands, instructions, tools)
    choices = choose_tools(user_text, tools, instructions)
    if len(choices) == 1:
        return _call_tool(choices[0])
    return OfflineAnswer(text=render_no_match(tools, [choice.tool for choice in choices]))


def _run_commands(
    commands: Sequence[Command], instructions: str, tools: tuple[ToolSpec, ...]
) -> OfflineAnswer:
    answer = OfflineAnswer()
    by_name = {tool.name: tool for tool in tools}
    for command in commands:
        if command.arguments is not None:
            answer.calls.append((command.name, command.arguments))
        elif command.is_known:
            tool = by_name[command.name]
            called = _call_tool(fill_arguments(tool, command.free_text, instructions))
            if not called.calls:
                return called
            answer.calls += called.calls
        elif command.name == "tools":
            answer.text = render_tools(tools, command.free_text, limit=len(tools))
        else:
            answer.text = render_introduction(tools)
    return answer


def _call_tool(choice: ToolChoice) -> OfflineAnswer:
    if choice.missing:
        return OfflineAnswer(text=render_missing_arguments(choice))
    return OfflineAnswer(calls=[(choice.tool.name, arguments) for arguments in choice.arguments])


def _count_answer_tokens(text: str, calls: Sequence[ToolCall]) -> int:
    return count_tokens(text) + sum(count_tokens(call.name + call.raw_arguments) for call in calls)
