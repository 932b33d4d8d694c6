"""The search toolset: find files and lines.

Patterns are re2's, which runs in linear time. A search that reaches a limit stops and reports it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic
from typing import Any

import re2

from agents.builtin_tools.toolsets.filesystem import (
    FOLDER_PATH_SCHEMA,
    GIT_FOLDER,
    MAX_SCANNED,
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

MAX_RESULTS = 200
MAX_CONTEXT_LINES = 5
MAX_LINE_LENGTH = 300
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_READ_BYTES = 256 * 1024 * 1024
MAX_SEARCH_S = 20.0


@dataclass(slots=True)
class _FileSearch:
    """A search and its progress; `stopped_by` describes the limit reached, or ""."""

    pattern: Any
    glob: str
    base: str
    context_lines: int
    max_results: int
    lines: list[str] = field(default_factory=list)
    result_count: int = 0
    file_count: int = 0
    skipped_count: int = 0
    bytes_read: int = 0
    stopped_by: str = ""
    deadline: float = field(default_factory=lambda: monotonic() + MAX_SEARCH_S)

    def is_over(self) -> bool:
        """Return whether a limit is reached, and set `stopped_by`."""
        limits = (
            (self.result_count >= self.max_results, f"the first {self.max_results} are shown"),
            (self.file_count >= MAX_SCANNED, f"{MAX_SCANNED:,} files were looked at"),
            (self.bytes_read >= MAX_READ_BYTES, f"{MAX_READ_BYTES:,} bytes were read"),
            (monotonic() > self.deadline, f"{MAX_SEARCH_S:.0f} s are over"),
        )
        self.stopped_by = next((reason for is_reached, reason in limits if is_reached), "")
        return bool(self.stopped_by)


async def _handle_search_files(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    text = arguments.get("text")
    if text is None and "name" not in arguments:
        raise InvalidInput(
            "The search has no criteria.",
            field="text",
            remedy="Set `text`, `name`, or both.",
        )
    search = _FileSearch(
        pattern=None if text is None else _compile_pattern(text, arguments),
        glob=arguments.get("name", ""),
        base=normalize_path(arguments.get("path", ".")),
        context_lines=arguments.get("around", 0),
        max_results=arguments.get("most", MAX_RESULTS),
    )
    return await run_in_thread(_run_search, get_workspace(context), search)


def _compile_pattern(text: str, arguments: dict[str, Any]) -> Any:
    options = re2.Options()
    options.log_errors = False
    options.literal = not arguments.get("regex", False)
    options.case_sensitive = not arguments.get("ignore_case", False)
    try:
        return re2.compile(text, options)
    except re2.error as error:
        raise InvalidInput(
            format_message(
                "`text` isn't a valid re2 regular expression: {error}.",
                error=_format_error(error),
            ),
            code="bad_pattern",
            field="text",
            remedy="Remove lookaround and backreferences, or omit `regex`.",
        ) from None


def _format_error(error: Exception) -> str:
    message = error.args[0] if error.args else ""
    return message.decode("utf-8", "replace") if isinstance(message, bytes) else str(message)


def _run_search(workspace: Workspace, search: _FileSearch) -> str:
    with workspace.open() as folder:
        for entry in folder.iterate_entries(search.base, skip=(GIT_FOLDER,)):
            if search.is_over():
                break
            if search.glob and not match_glob(entry.path, search.base, search.glob):
                continue
            if search.pattern is None:
                search.result_count += 1
                search.lines.append(entry.path + ("/" if entry.kind == "folder" else ""))
            elif entry.kind == "file":
                search.file_count += 1
                _search_file(folder, entry, search)
        else:
            search.is_over()
    return _format_results(search)


def _search_file(folder: ConfinedFolder, entry: FolderEntry, search: _FileSearch) -> None:
    try:
        data = folder.read(entry.path, MAX_FILE_BYTES)
    except (Problem, OSError):
        search.skipped_count += 1
        return
    search.bytes_read += len(data)
    if b"\0" in data[:8192]:
        search.skipped_count += 1
        return
    lines = [line.rstrip("\r\n") for line in split_lines(data.decode("utf-8", "replace"))]
    hits = [number for number, line in enumerate(lines) if search.pattern.search(line)]
    hits = hits[: search.max_results - search.result_count]
    search.result_count += len(hits)
    search.lines += _format_matches(entry.path, lines, hits, search.context_lines)


def _format_matches(
    path: str, lines: list[str], hits: list[int], context_lines: int
) -> Iterator[str]:
    """Yield matching lines in grep's format; `-` marks context lines."""
    last_number = -1
    for number in sorted({n + d for n in hits for d in range(-context_lines, context_lines + 1)}):
        if not 0 <= number < len(lines):
            continue
        if context_lines and last_number >= 0 and number > last_number + 1:
            yield "--"
        separator = ":" if number in hits else "-"
        line = lines[number]
        ellipsis = "…" if len(line) > MAX_LINE_LENGTH else ""
        yield f"{path}{separator}{number + 1}{separator}{line[:MAX_LINE_LENGTH]}{ellipsis}"
        last_number = number


def _format_results(search: _FileSearch) -> str:
    lines = search.lines or ["Nothing was found."]
    if search.stopped_by:
        lines.append(f"[there may be more: {search.stopped_by}]")
    if search.skipped_count:
        lines.append(
            f"[{search.skipped_count} files were skipped: not text, too large, or not readable]"
        )
    return "\n".join(lines)


SEARCH_TOOLS = (
    BuiltinTool(
        name="search_files",
        description=format_message(
            "Find files in the workspace by name (a glob such as `*.py`), by lines that "
            "contain a text or match a regular expression (re2), or both. `.git` is "
            "excluded."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "text": {"type": "string", "minLength": 1, "maxLength": 1000},
                "name": {"type": "string", "minLength": 1, "maxLength": 256},
                "path": FOLDER_PATH_SCHEMA,
                "regex": {"type": "boolean", "description": "`text` is a regular expression."},
                "ignore_case": {"type": "boolean"},
                "around": {"type": "integer", "minimum": 0, "maximum": MAX_CONTEXT_LINES},
                "most": {"type": "integer", "minimum": 1, "maximum": MAX_RESULTS},
            },
            "additionalProperties": False,
        },
        run=_handle_search_files,
        toolset="search",
        labels=(FlowLabel.REPEATABLE,),
        reads_workspace=True,
    ),
)
