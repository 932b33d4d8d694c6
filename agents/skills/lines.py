"""Arguments as people write them, one in a line: `severity! = low ["low", "high"]: how bad`. Pure.

After the name, each part may be left out: `!` for required, the default (in quotation marks where
it holds `:`, `[` or `"`), the choices as a JSON list, the description.
"""

import json
import re
from collections.abc import Iterable

from agents.skills.rendering import Argument
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say

FORM = 'NAME[!][=DEFAULT][["A", "B"]][:DESCRIPTION]'
_LINE = re.compile(
    r"\s*(?P<name>[^!=:\[\s]+)\s*(?P<required>!)?\s*"
    r"(?:=\s*(?P<default>\"(?:[^\"\\]|\\.)*\"|[^\":\[]*?))?\s*"
    r"(?P<choices>\[.*?\])?\s*(?::\s*(?P<description>.*?))?\s*"
)
_SPECIAL = re.compile(r"[:\[\"]|^\s|\s$")


def read_line(line: str) -> Argument:
    """Return the argument that a line declares; raises `Invalid`."""
    found = _LINE.fullmatch(line)
    if found is None:
        raise _unreadable(line)
    default = found["default"] or ""
    try:
        return Argument(
            name=found["name"],
            description=found["description"] or "",
            required=bool(found["required"]),
            default=json.loads(default) if default.startswith('"') else default,
            choices=tuple(json.loads(found["choices"] or "[]")),
        )
    except ValueError:
        raise _unreadable(line) from None


def write_line(one: Argument) -> str:
    """Return an argument as a line that reads back as it was."""
    quoted = _SPECIAL.search(one.default)
    default = json.dumps(one.default, ensure_ascii=False) if quoted else one.default
    parts = [one.name, "!" if one.required else "", f" = {default}" if one.default else ""]
    if one.choices:
        parts.append(f" {json.dumps(list(one.choices), ensure_ascii=False)}")
    if one.description:
        parts.append(f": {' '.join(one.description.split())}")
    return "".join(parts)


def read_lines(text: str) -> list[Argument]:
    """Return what the lines of a text declare; raises `Invalid` naming the line."""
    return [read_line(line) for line in text.splitlines() if line.strip()]


def write_lines(arguments: Iterable[Argument]) -> str:
    """Return arguments as lines."""
    return "\n".join(map(write_line, arguments))


def _unreadable(line: str) -> Invalid:
    return Invalid(
        say("{line!r} declares no argument.", line=line.strip()[:100]),
        field="arguments",
        remedy=say("Write {form}, one in a line.", form=FORM),
    )
