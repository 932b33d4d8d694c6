"""Typed commands of the offline model: a tool and its arguments, `/get_time {"zone": "UTC"}`.

Several run at once, as written. Their JSON may span lines; a tool's own name is enough if it is
unique. `/help` and `/tools` are commands of the model.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

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
            f"there is text behind the JSON of `/{name}`: `{trailing_text[:80]}`."
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
