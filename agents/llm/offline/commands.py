"""Lines that a person types to call a tool themselves: `/tool_name {"argument": "value"}`.

They run as they stand, several of them side by side. The JSON may go over several lines; a tool's
own name is enough where only one tool has it.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

HEAD = re.compile(r"^[ \t]*/([A-Za-z0-9_.-]{1,128})(?=[ \t{\n]|$)[ \t]*", re.M)
OWN = ("help", "tools")
MAX_COMMANDS = 50


@dataclass(frozen=True)
class Command:
    """A typed line: a tool with its arguments, or with words that should become arguments."""

    name: str
    arguments: dict[str, Any] | None
    words: str
    known: bool


class Mistyped(ValueError):
    """A line that can't be run as it stands; the text says where and why."""


def commands_in(text: str, names: Sequence[str]) -> list[Command]:
    """Return the commands of a message, in order; empty when it holds none.

    Raises Mistyped when one of them is broken: then none should run.
    """
    found: list[Command] = []
    at = 0
    while match := HEAD.search(text, at):
        command, at = _read(text, match, names)
        if command.known or command.arguments is not None or command.name in OWN:
            found.append(command)
            if len(found) > MAX_COMMANDS:
                raise Mistyped(f"These are more than {MAX_COMMANDS} calls at once.")
        elif text.strip() == match.group().strip():
            raise Mistyped(_unknown(command.name, names))
    return found


def full_name(name: str, names: Sequence[str]) -> str:
    """Return the tool that a typed name means: itself, or the only one that ends in it."""
    if name in names:
        return name
    plain = re.sub(r"\W", "_", name)
    ending = [other for other in names if other.endswith((f"_{name}", f"_{plain}"))]
    return ending[0] if len(ending) == 1 else name


def close_to(name: str, names: Sequence[str]) -> list[str]:
    """Return the tools whose names are nearly this one, the nearest first."""
    own = {other.rpartition("_")[2]: other for other in names}
    near = get_close_matches(name, names, n=3, cutoff=0.75)
    return near or [own[match] for match in get_close_matches(name, own, n=3, cutoff=0.75)]


def _read(text: str, match: re.Match[str], names: Sequence[str]) -> tuple[Command, int]:
    name = full_name(match.group(1), names)
    at = match.end()
    line_end = text.find("\n", at) % (len(text) + 1)
    if text[at : at + 1] != "{":
        return Command(name, None, text[at:line_end].strip(), name in names), line_end
    try:
        arguments, end = json.JSONDecoder(parse_constant=_not_json).raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        raise Mistyped(_broken(text, at, name, error)) from error
    line_end = text.find("\n", end) % (len(text) + 1)
    behind = text[end:line_end].strip()
    if behind:
        raise Mistyped(
            f"Line {_line(text, end)}: there is text behind the JSON of `/{name}`: `{behind[:80]}`."
        )
    return Command(name, arguments, "", name in names), line_end


def _broken(text: str, at: int, name: str, error: Exception) -> str:
    where = f"Line {_line(text, at)}"
    if isinstance(error, json.JSONDecodeError):
        where = f"Line {error.lineno}, column {error.colno}"
        return f"{where}: the arguments of `/{name}` are not JSON ({error.msg.lower()})."
    return f"{where}: the arguments of `/{name}` are not JSON ({error})."


def _unknown(name: str, names: Sequence[str]) -> str:
    near = close_to(name, names)
    hint = " Did you mean " + " or ".join(f"`/{other}`" for other in near) + "?" if near else ""
    return f"There is no tool `{name}` here.{hint} `/tools` lists them."


def _line(text: str, at: int) -> int:
    return text.count("\n", 0, at) + 1


def _not_json(name: str) -> None:
    raise ValueError(f"{name} isn't a JSON value")
