"""The kit `edit`: replace exact passages of a file, all of them or none (FEATURES E3)."""

import difflib
from typing import Any

from agents.builtin_tools.filesystem import (
    MOST_READ,
    PATH,
    lines_of,
    room_for,
    text_of,
    workspace,
    writable,
)
from agents.builtin_tools.tool import BuiltinTool, Context, Hints
from agents.builtin_tools.workspaces import Workspace, beside
from bonobot.lib.paths import missing
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say

MOST_EDITS = 100
PASSAGE = 200_000
DIFF_SHOWN = 16_384
DIFFED = 400_000  # characters; of longer files only numbers are told
PLACES_NAMED = 5


def edited(text: str, edits: list[dict[str, Any]]) -> str:
    """Return a text after all edits, each made in what the former ones left.

    Raises `Invalid` for the first that doesn't fit: `old` is not there, or more than once.
    """
    for number, edit in enumerate(edits):
        old, new = edit["old"], edit["new"]
        if old == new:
            raise _misfit(number, "same_text", "`old` and `new` are the same.", "Leave it out.")
        found = text.count(old)
        if not found:
            raise _misfit(number, "not_found", _absent(text, old), _look(text, old))
        if found > 1 and not edit.get("every"):
            raise _misfit(
                number,
                "ambiguous",
                say(
                    "`old` is there {found} times, on the lines {text}.",
                    found=found,
                    text=_lines(text, old),
                ),
                "Write more of what stands around it, or set `every`.",
            )
        text = text.replace(old, new)
    return text


def _misfit(number: int, code: str, why: str, remedy: str) -> Invalid:
    return Invalid(
        say("Nothing was changed. Edit {number}: {why}", number=number + 1, why=why),
        code=code,
        field=f"edits[{number}].old",
        remedy=remedy,
    )


def _absent(text: str, old: str) -> str:
    if "\r\n" in text and "\n" in old and "\r\n" not in old:
        return "`old` is not in the file, whose lines end with CR LF."
    return "`old` is not in the file."


def _look(text: str, old: str) -> str:
    """Say what comes nearest: a line that differs in its blanks only."""
    wanted = "".join(old.split("\n", 1)[0].split())
    for number, line in enumerate(lines_of(text), start=1):
        if wanted and "".join(line.split()) == wanted:
            return f"Line {number} differs in its blanks only; read it again and copy it exactly."
    return "Read the file again and copy the passage exactly, blanks and all."


def _lines(text: str, old: str) -> str:
    found: list[str] = []
    at = text.find(old)
    while at >= 0 and len(found) <= PLACES_NAMED:
        found.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + len(old))
    more = " …" if len(found) > PLACES_NAMED else ""
    return ", ".join(found[:PLACES_NAMED]) + more


async def _edit(context: Context, arguments: dict[str, Any]) -> str:
    path = writable(arguments["path"])
    return await beside(_changed, workspace(context), path, arguments["edits"])


def _changed(place: Workspace, path: str, edits: list[dict[str, Any]]) -> str:
    with place.open() as folder, place.changing(folder):
        there = folder.look(path)
        if there is None:
            raise missing(path)
        before = text_of(path, folder.read(path, MOST_READ))
        after = edited(before.text, edits)
        data = before.encoded(after)
        room_for(place, folder, path, len(data), there)
        folder.write(path, data)
    count = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
    return f"Changed {path}: {count}.\n{_diff(before.text, after)}"


def _diff(before: str, after: str) -> str:
    if len(before) + len(after) > DIFFED:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    text = "\n".join(list(lines)[2:])
    return text if len(text) <= DIFF_SHOWN else f"{text[:DIFF_SHOWN]}\n[the difference goes on]"


TOOLS = (
    BuiltinTool(
        name="edit_file",
        description=say(
            "Replace exact passages of a text file of the workspace. Each `old` must be there "
            "once, or `every` of it is replaced; where one edit doesn't fit, nothing is changed."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": PATH,
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MOST_EDITS,
                    "items": {
                        "type": "object",
                        "properties": {
                            "old": {"type": "string", "minLength": 1, "maxLength": PASSAGE},
                            "new": {"type": "string", "maxLength": PASSAGE},
                            "every": {"type": "boolean"},
                        },
                        "required": ["old", "new"],
                        "additionalProperties": False,
                    },
                },
            },
            "required": ["path", "edits"],
            "additionalProperties": False,
        },
        run=_edit,
        kit="edit",
        reads=True,
        writes=True,
        hints=Hints(read_only=False, destructive=True, idempotent=False),
    ),
)
