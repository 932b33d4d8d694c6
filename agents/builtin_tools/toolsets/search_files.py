"""The search toolset: find files and lines.

Patterns are re2's, which runs in linear time. A search that reaches a limit stops and reports it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import re2

from agents.builtin_tools.toolsets.filesystem import (
    FOLDER_PATH,
    LOOKED_AT,
    REPOSITORY,
    get_workspace,
    match_glob,
    normalize_path,
    split_lines,
)
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext
from agents.builtin_tools.workspaces import Workspace, run_in_thread
from bonobot.core.confined_folder import ConfinedFolder, FolderEntry
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from mcp_servers.flow_labels import FlowLabel

MOST_FOUND = 200
MOST_AROUND = 5
LINE_SHOWN = 300
LARGEST_FILE = 4 * 1024 * 1024
MOST_READ = 256 * 1024 * 1024
SECONDS = 20.0


@dataclass(slots=True)
class _FileSearch:
    """A search and its progress; `stopped_by` describes the limit reached, or ""."""

    pattern: Any
    glob: str
    base: str
    around: int
    most: int
    lines: list[str] = field(default_factory=list)
    found: int = 0
    files: int = 0
    left_out: int = 0
    read: int = 0
    ended: str = ""
    until: float = field(default_factory=lambda: monotonic() + SECONDS)

    def is_over(self) -> bool:
        """Return whether a limit is reached, and set `stopped_by`."""
        bounds = (
            (self.found >= self.most, f"the first {self.most} are shown"),
            (self.files >= LOOKED_AT, f"{LOOKED_AT:,} files were looked at"),
            (self.read >= MOST_READ, f"{MOST_READ:,} bytes were read"),
            (monotonic() > self.until, f"{SECONDS:.0f} s are over"),
        )
        self.ended = next((why for reached, why in bounds if reached), "")
        return bool(self.ended)


async def _search(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    said = arguments.get("text")
    if said is None and "name" not in arguments:
        raise InvalidInput(
            "It has to be said what is looked for.",
            field="text",
            remedy="Give `text`, `name`, or both.",
        )
    search = _FileSearch(
        pattern=None if said is None else _compile_pattern(said, arguments),
        glob=arguments.get("name", ""),
        base=normalize_path(arguments.get("path", ".")),
        around=arguments.get("around", 0),
        most=arguments.get("most", MOST_FOUND),
    )
    return await run_in_thread(_run, get_workspace(context), search)


def _compile_pattern(said: str, arguments: dict[str, Any]) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.literal = not arguments.get("regex", False)
    options.case_sensitive = not arguments.get("ignore_case", False)
    try:
        return re2.compile(said, options)
    except re2.error as error:
        raise InvalidInput(
            format_message(
                "`text` is no regular expression that re2 knows: {error}.",
                error=_format_error(error),
            ),
            code="bad_pattern",
            field="text",
            remedy="Leave out look-around and back-references, or leave `regex` out.",
        ) from None


def _format_error(error: Exception) -> str:
    said = error.args[0] if error.args else ""
    return said.decode("utf-8", "replace") if isinstance(said, bytes) else str(said)


def _run(place: Workspace, search: _FileSearch) -> str:
    with place.open() as folder:
        for entry in folder.walk(search.base, skip=(REPOSITORY,)):
            if search.is_over():
                break
            if search.glob and not match_glob(entry.path, search.base, search.glob):
                continue
            if search.pattern is None:
                search.found += 1
                search.lines.append(entry.path + ("/" if entry.kind == "folder" else ""))
            elif entry.kind == "file":
                search.files += 1
                _read(folder, entry, search)
        else:
            search.is_over()
    return _format_results(search)


def _read(folder: ConfinedFolder, entry: FolderEntry, search: _FileSearch) -> None:
    try:
        data = folder.read(entry.path, LARGEST_FILE)
    except (Problem, OSError):
        search.left_out += 1
        return
    search.read += len(data)
    if b"\0" in data[:8192]:
        search.left_out += 1
        return
    lines = [line.rstrip("\r\n") for line in split_lines(data.decode("utf-8", "replace"))]
    hits = [number for number, line in enumerate(lines) if search.pattern.search(line)]
    hits = hits[: search.most - search.found]
    search.found += len(hits)
    search.lines += _format_matches(entry.path, lines, hits, search.around)


def _format_matches(path: str, lines: list[str], hits: list[int], around: int) -> Iterator[str]:
    """Yield matching lines in grep's format; `-` marks context lines."""
    last = -1
    for number in sorted({n + d for n in hits for d in range(-around, around + 1)}):
        if not 0 <= number < len(lines):
            continue
        if around and last >= 0 and number > last + 1:
            yield "--"
        mark = ":" if number in hits else "-"
        line = lines[number]
        cut = "…" if len(line) > LINE_SHOWN else ""
        yield f"{path}{mark}{number + 1}{mark}{line[:LINE_SHOWN]}{cut}"
        last = number


def _format_results(search: _FileSearch) -> str:
    lines = search.lines or ["Nothing was found."]
    if search.ended:
        lines.append(f"[there may be more: {search.ended}]")
    if search.left_out:
        lines.append(f"[{search.left_out} files were left out: no text, too large, or refused]")
    return "\n".join(lines)


SEARCH_TOOLS = (
    BuiltinTool(
        name="search_files",
        description=format_message(
            "Find files of the workspace by name (a glob such as `*.py`), or lines that "
            "hold a text or fit a regular expression (re2), or both. `.git` is left out."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "text": {"type": "string", "minLength": 1, "maxLength": 1000},
                "name": {"type": "string", "minLength": 1, "maxLength": 256},
                "path": FOLDER_PATH,
                "regex": {"type": "boolean", "description": "`text` is a regular expression."},
                "ignore_case": {"type": "boolean"},
                "around": {"type": "integer", "minimum": 0, "maximum": MOST_AROUND},
                "most": {"type": "integer", "minimum": 1, "maximum": MOST_FOUND},
            },
            "additionalProperties": False,
        },
        run=_search,
        kit="search",
        labels=(FlowLabel.REPEATABLE,),
        reads=True,
    ),
)
