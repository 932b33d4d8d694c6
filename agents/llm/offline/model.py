"""The offline model: rules that run typed commands, and calls that a message clearly asks for.

It makes a new installation usable without a network or a key, and says that it isn't a language
model. A turn either calls tools or shows their results.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

from agents.llm.interface import (
    Finish,
    Message,
    ModelReply,
    OnText,
    TokenUsage,
    ToolCall,
    ToolSpec,
    build_assistant_message,
    build_call_id,
)
from agents.llm.message_order import get_next_turn, order_messages
from agents.llm.offline import replies
from agents.llm.offline.choose_tool import ToolChoice, choose_tools, fill_arguments
from agents.llm.pricing import count_tokens, estimate_tokens, truncate_text

CHUNK_LENGTH = 40  # characters that are streamed at once, about


COMMAND_START = re.compile(r"^[ \t]*/([A-Za-z0-9_.-]{1,128})(?=[ \t{\n]|$)[ \t]*", re.M)
OWN_COMMANDS = ("help", "tools")
MAX_COMMANDS = 50


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

    async def request(
        self,
        messages: Sequence[Message],
        *,
        instructions: str = "",
        tools: Sequence[ToolSpec] = (),
        max_tokens: int | None = None,
        on_text: OnText | None = None,
        on_thinking: OnText | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> ModelReply:
        """Answer from the conversation; the text is streamed in pieces."""
        # Hundreds of definitions would block the event loop.
        reply = await asyncio.to_thread(
            _build_reply, messages, instructions, tuple(tools), max_tokens, output_schema
        )
        if on_text is not None:
            for piece in split_text(reply.text):
                await on_text(piece)
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


def _build_reply(
    messages: Sequence[Message],
    instructions: str,
    tools: tuple[ToolSpec, ...],
    max_tokens: int | None = None,
    output_schema: Mapping[str, Any] | None = None,
) -> ModelReply:
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
    if output_schema and not calls:
        answer.text = replies.render_output(output_schema, answer.text)
    finish: Finish = "tool_calls" if calls else "stop"
    text, output_tokens = answer.text, _count_answer_tokens(answer.text, calls)
    if max_tokens is not None and output_tokens > max_tokens:
        text, calls, finish = truncate_text(text, max_tokens), (), "length"
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
        answer = _answer_user_text(user_text, instructions, tools)
    elif not results:
        answer.text = replies.render_introduction(tools)
    if results:
        rendered_results = replies.render_results(messages[last_turn]["calls"], results)
        if not any(message["role"] == "tool" for message in messages[:last_turn]):
            rendered_results = f"{rendered_results}\n\n{replies.FOOTNOTE}"
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
    return OfflineAnswer(text=replies.render_no_match(tools, [choice.tool for choice in choices]))


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
            answer.text = replies.render_tools(tools, command.free_text, limit=len(tools))
        else:
            answer.text = replies.render_introduction(tools)
    return answer


def _call_tool(choice: ToolChoice) -> OfflineAnswer:
    if choice.missing:
        return OfflineAnswer(text=replies.render_missing_arguments(choice))
    return OfflineAnswer(calls=[(choice.tool.name, arguments) for arguments in choice.arguments])


def _count_answer_tokens(text: str, calls: Sequence[ToolCall]) -> int:
    return count_tokens(text) + sum(count_tokens(call.name + call.raw_arguments) for call in calls)
