"""The filesystem and edit toolsets: list, read, write and edit files."""

import base64
import difflib
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from io import StringIO
from typing import Any

from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import SANDBOX_PATH, Workspace, build_workspace, run_in_thread
from agents.images import MAX_IMAGE_BYTES, detect_media_type
from bonobot.core.confined_folder import (
    ConfinedFolder,
    FolderEntry,
    PathRefused,
    build_not_found_error,
    split_path,
)
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Forbidden, InvalidInput
from mcp_servers.flow_labels import FlowLabel

TOOLSET_NAME = "filesystem"
MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_WRITE_LENGTH = 2 * 1024 * 1024  # characters of one call
MAX_LISTED = 1000
MAX_SCANNED = 50_000
DEFAULT_LINES = 2000
GIT_FOLDER = ".git"

PATH_SCHEMA = {"type": "string", "minLength": 1, "maxLength": 4096}
FOLDER_PATH_SCHEMA = PATH_SCHEMA | {
    "description": "A folder in the workspace. Default: the workspace itself."
}
MAX_EDITS = 100
MAX_PASSAGE_LENGTH = 200_000
MAX_DIFF_LENGTH = 16_384
MAX_DIFFED_LENGTH = 400_000  # characters; longer files get no diff
MAX_LINES_NAMED = 5
_DESTRUCTIVE_HINTS = BuiltinToolHints(read_only=False, destructive=True, idempotent=False)


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's text, and whether it starts with a byte order mark."""

    text: str
    has_bom: bool = False

    def encode(self, text: str) -> bytes:
        return text.encode("utf-8-sig" if self.has_bom else "utf-8")


def normalize_path(path: str) -> str:
    """Return a path relative to the workspace; `/workspace/…` is accepted too."""
    if path == SANDBOX_PATH or path.startswith(f"{SANDBOX_PATH}/"):
        path = path[len(SANDBOX_PATH) :].lstrip("/")
    return "/".join(split_path(path))


def resolve_writable_path(path: str) -> str:
    """Return a normalized path that may be written; raises `Forbidden` inside `.git`.

    Files in `.git` decide what git runs (hooks, filters), which only the shell may do.
    """
    normalized = normalize_path(path)
    if GIT_FOLDER in (part.lower() for part in normalized.split("/")):
        raise Forbidden(
            format_message(
                "`{path}` is one of a repository's internal files.", path=normalized[:200]
            ),
            code="repository_inside",
            field="path",
            remedy="Use the git tools to change a repository. Files outside `.git` can be written.",
        )
    return normalized


def get_workspace(context: BuiltinToolContext) -> Workspace:
    """Return the workspace of the calling agent."""
    return build_workspace(context.organization_id, context.agent_id, context.toolbox)


def decode_text(path: str, data: bytes) -> FileText:
    """Return a file's text; raises `PathRefused` (`not_text`) for anything but UTF-8."""
    has_bom = data.startswith(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise PathRefused(
            format_message(
                "`{path}` isn't UTF-8 text. It has {count:,} bytes.",
                path=path,
                count=len(data),
            ),
            code="not_text",
            field="path",
            remedy="Only text and images (PNG, JPEG, GIF, WebP) can be read.",
        )
    return FileText(text, has_bom)


def split_lines(text: str) -> list[str]:
    """Return the lines with their endings; only a line feed ends a line."""
    return StringIO(text, newline="\n").readlines()


async def _handle_list_files(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(_list_entries, get_workspace(context), arguments)


def _list_entries(workspace: Workspace, arguments: dict[str, Any]) -> str:
    path, glob = normalize_path(arguments.get("path", ".")), arguments.get("glob", "")
    with workspace.open() as folder:
        if glob or arguments.get("recursive"):
            entries, more = _filter_entries(folder, path, glob)
        else:
            entries, more = folder.list_entries(path, MAX_LISTED)
    lines = [_format_entry(entry) for entry in entries]
    if more:
        lines.append(f"[more than {len(entries)}. To list fewer, specify a folder or a glob.]")
    return "\n".join(lines) or "No results."


def _filter_entries(folder: ConfinedFolder, path: str, glob: str) -> tuple[list[FolderEntry], bool]:
    matches: list[FolderEntry] = []
    for number, entry in enumerate(folder.iterate_entries(path, skip=(GIT_FOLDER,))):
        if number == MAX_SCANNED or len(matches) == MAX_LISTED:
            return matches, True
        if not glob or match_glob(entry.path, path, glob):
            matches.append(entry)
    return matches, False


def match_glob(path: str, base: str, glob: str) -> bool:
    """Return whether a glob matches a file's name, or its path below `base` if it has a slash."""
    relative_path = path[len(base) + 1 :] if base else path
    if "/" not in glob:
        return fnmatchcase(relative_path.rpartition("/")[2], glob)
    return fnmatchcase(relative_path, glob) or (
        glob.startswith("**/") and fnmatchcase(relative_path, glob[3:])
    )


def _format_entry(entry: FolderEntry) -> str:
    suffixes = {"folder": "/", "link": " (symbolic link, not followed)", "other": " (no file)"}
    size = f"  {entry.size:,} bytes" if entry.kind == "file" else ""
    return f"{entry.path}{suffixes.get(entry.kind, '')}{size}"


async def _handle_file_info(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(
        _describe_path, get_workspace(context), normalize_path(arguments["path"])
    )


def _describe_path(workspace: Workspace, path: str) -> str:
    with workspace.open() as folder:
        entry = folder.find_entry(path)
        if entry is None:
            raise build_not_found_error(path)
        usage_text = "" if path or workspace.attached else _format_usage(workspace, folder)
    modified_at = datetime.fromtimestamp(entry.modified_ns / 1e9, UTC).isoformat(timespec="seconds")
    lines = [path or ".", f"kind: {entry.kind}", f"bytes: {entry.size}", f"changed: {modified_at}"]
    if entry.kind == "file" and entry.link_count > 1:
        lines.append(f"names: {entry.link_count} (hard links: not read or written)")
    return "\n".join(lines) + usage_text


def _format_usage(workspace: Workspace, folder: ConfinedFolder) -> str:
    usage = workspace.measure_usage(folder)
    prefix = "more than " if usage.is_partial else ""
    return (
        f"\nusage: {prefix}{usage.size:,} of {workspace.max_bytes:,} bytes, "
        f"{prefix}{usage.file_count:,} of {workspace.max_files:,} files and folders"
    )


async def _handle_read_file(
    context: BuiltinToolContext, arguments: dict[str, Any]
) -> str | dict[str, Any]:
    return await run_in_thread(_read_file, get_workspace(context), arguments)


def _read_file(workspace: Workspace, arguments: dict[str, Any]) -> str | dict[str, Any]:
    path = normalize_path(arguments["path"])
    with workspace.open() as folder:
        data = folder.read(path, MAX_FILE_BYTES)
    if (media_type := detect_media_type(data)) and len(data) <= MAX_IMAGE_BYTES:
        return _build_image_result(path, media_type, data)
    lines = split_lines(decode_text(path, data).text)
    first_line = arguments.get("first_line", 1)
    shown_lines = lines[first_line - 1 : first_line - 1 + arguments.get("lines", DEFAULT_LINES)]
    last_line = first_line - 1 + len(shown_lines)
    if first_line == 1 and last_line == len(lines):
        return "".join(shown_lines)
    return f"{''.join(shown_lines)}\n[lines {first_line} to {last_line} of {len(lines)}]"


def _build_image_result(path: str, media_type: str, data: bytes) -> dict[str, Any]:
    image = {"type": "image", "mimeType": media_type, "data": base64.b64encode(data).decode()}
    return {"content": [{"type": "text", "text": f"{path}, {len(data):,} bytes"}, image]}


async def _handle_write_file(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(_write_file, get_workspace(context), arguments)


def _write_file(workspace: Workspace, arguments: dict[str, Any]) -> str:
    path, data = (
        resolve_writable_path(arguments["path"]),
        arguments["text"].encode("utf-8", "replace"),
    )
    with workspace.open() as folder, workspace.lock(folder):
        existing_entry = folder.find_entry(path)
        if existing_entry is not None and arguments.get("new"):
            raise PathRefused(
                format_message("`{path}` already exists.", path=path),
                code="already_exists",
                field="path",
                remedy="Choose another name, or omit `new` to replace the file.",
            )
        require_room_for_file(workspace, folder, path, len(data), existing_entry)
        is_new = folder.write(path, data, create_parents=True)
    return f"{'Created' if is_new else 'Replaced'} {path}, {len(data):,} bytes."


def require_room_for_file(
    workspace: Workspace,
    folder: ConfinedFolder,
    path: str,
    size: int,
    existing_entry: FolderEntry | None,
) -> None:
    """Raise `QuotaExceeded` if a file of this size doesn't fit in place of the existing one."""
    parts = path.split("/")
    parent_folders = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    new_folder_count = (
        0 if existing_entry else sum(folder.find_entry(parent) is None for parent in parent_folders)
    )
    workspace.require_room(
        folder,
        size - (existing_entry.size if existing_entry else 0),
        new_folder_count + (0 if existing_entry is not None else 1),
    )


async def _handle_make_folder(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(
        _create_folder, get_workspace(context), resolve_writable_path(arguments["path"])
    )


def _create_folder(workspace: Workspace, path: str) -> str:
    with workspace.open() as folder, workspace.lock(folder):
        workspace.require_room(folder, 0, len(split_path(path)))
        is_new = folder.create_folder(path)
    return f"Created {path}." if is_new else f"{path} already exists."


async def _handle_move_file(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path, target = resolve_writable_path(arguments["path"]), resolve_writable_path(arguments["to"])
    return await run_in_thread(
        _move_path,
        get_workspace(context),
        path,
        target,
        overwrite=arguments.get("overwrite", False),
    )


def _move_path(workspace: Workspace, path: str, target: str, *, overwrite: bool) -> str:
    with workspace.open() as folder, workspace.lock(folder):
        folder.move(path, target, overwrite=overwrite)
    return f"Moved {path} to {target}."


async def _handle_delete_file(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path = resolve_writable_path(arguments["path"])
    with_contents = arguments.get("with_contents", False)
    return await run_in_thread(
        _delete_path, get_workspace(context), path, with_contents=with_contents
    )


def _delete_path(workspace: Workspace, path: str, *, with_contents: bool) -> str:
    with workspace.open() as folder, workspace.lock(folder):
        entry = folder.delete(path, with_contents=with_contents)
    return f"Deleted the {entry.kind} {path}."


def _build_schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


FILESYSTEM_TOOLS = (
    BuiltinTool(
        name="list_files",
        description=format_message(
            "List a folder of the workspace. With `recursive` or a `glob` (`*.py`, "
            "`src/**/*.md`), list everything in it that matches."
        ),
        input_schema=_build_schema(
            (),
            path=FOLDER_PATH_SCHEMA,
            glob={"type": "string", "maxLength": 256},
            recursive={"type": "boolean"},
        ),
        run=_handle_list_files,
        toolset=TOOLSET_NAME,
        labels=(FlowLabel.REPEATABLE,),
        reads_workspace=True,
    ),
    BuiltinTool(
        name="file_info",
        description=format_message(
            "Describe a path in the workspace: file or folder, size in bytes, last "
            "modified. For `.`, also return the workspace limits."
        ),
        input_schema=_build_schema(("path",), path=PATH_SCHEMA),
        run=_handle_file_info,
        toolset=TOOLSET_NAME,
        labels=(FlowLabel.REPEATABLE,),
        reads_workspace=True,
    ),
    BuiltinTool(
        name="read_file",
        description=format_message(
            "Read a text file in the workspace, in full or by line range. Images (PNG, "
            "JPEG, GIF, WebP) are displayed as images."
        ),
        input_schema=_build_schema(
            ("path",),
            path=PATH_SCHEMA,
            first_line={"type": "integer", "minimum": 1, "description": "1 is the first."},
            lines={"type": "integer", "minimum": 1, "maximum": 100_000},
        ),
        run=_handle_read_file,
        toolset=TOOLSET_NAME,
        labels=(FlowLabel.REPEATABLE,),
        reads_workspace=True,
    ),
    BuiltinTool(
        name="write_file",
        description=format_message(
            "Write a text file in the workspace, creating parent folders. An existing file "
            "is replaced entirely; with `new`, the call fails if the file exists."
        ),
        input_schema=_build_schema(
            ("path", "text"),
            path=PATH_SCHEMA,
            text={"type": "string", "maxLength": MAX_WRITE_LENGTH},
            new={"type": "boolean", "description": "Fail if the file already exists."},
        ),
        run=_handle_write_file,
        toolset=TOOLSET_NAME,
        writes_workspace=True,
        hints=BuiltinToolHints(read_only=False, destructive=True, idempotent=True),
    ),
    BuiltinTool(
        name="make_folder",
        description=format_message(
            "Create a folder in the workspace, including its parent folders."
        ),
        input_schema=_build_schema(("path",), path=PATH_SCHEMA),
        run=_handle_make_folder,
        toolset=TOOLSET_NAME,
        labels=(FlowLabel.REPEATABLE,),
        writes_workspace=True,
        hints=BuiltinToolHints(read_only=False, destructive=False, idempotent=True),
    ),
    BuiltinTool(
        name="move_file",
        description=format_message("Move or rename a file or folder in the workspace."),
        input_schema=_build_schema(
            ("path", "to"), path=PATH_SCHEMA, to=PATH_SCHEMA, overwrite={"type": "boolean"}
        ),
        run=_handle_move_file,
        toolset=TOOLSET_NAME,
        writes_workspace=True,
        hints=_DESTRUCTIVE_HINTS,
    ),
    BuiltinTool(
        name="delete_file",
        description=format_message(
            "Delete a file, an empty folder, or a folder with its contents in the workspace."
        ),
        input_schema=_build_schema(("path",), path=PATH_SCHEMA, with_contents={"type": "boolean"}),
        run=_handle_delete_file,
        toolset=TOOLSET_NAME,
        writes_workspace=True,
        hints=_DESTRUCTIVE_HINTS,
    ),
)


def apply_edits(text: str, edits: list[dict[str, Any]]) -> str:
    """Return a text with all edits applied in order.

    Raises `InvalidInput` for the first edit whose `old` is missing or ambiguous.
    """
    for number, edit in enumerate(edits):
        old, new = edit["old"], edit["new"]
        if old == new:
            raise _build_edit_error(
                number, "same_text", "`old` and `new` are identical.", "Omit it."
            )
        count = text.count(old)
        if not count:
            raise _build_edit_error(
                number,
                "not_found",
                _describe_missing_text(text, old),
                _suggest_near_match(text, old),
            )
        if count > 1 and not edit.get("every"):
            raise _build_edit_error(
                number,
                "ambiguous",
                format_message(
                    "`old` occurs {count} times, on lines {lines}.",
                    count=count,
                    lines=_format_line_numbers(text, old),
                ),
                "Include more of the surrounding text, or set `every`.",
            )
        text = text.replace(old, new)
    return text


def _build_edit_error(number: int, code: str, detail: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        format_message("Nothing was changed. Edit {number}: {why}", number=number + 1, why=detail),
        code=code,
        field=f"edits[{number}].old",
        remedy=remedy,
    )


def _describe_missing_text(text: str, old: str) -> str:
    if "\r\n" in text and "\n" in old and "\r\n" not in old:
        return "`old` is not in the file, whose lines end with CR LF."
    return "`old` is not in the file."


def _suggest_near_match(text: str, old: str) -> str:
    """Return advice that names a line which differs only in whitespace."""
    stripped_line = "".join(old.split("\n", 1)[0].split())
    for number, line in enumerate(split_lines(text), start=1):
        if stripped_line and "".join(line.split()) == stripped_line:
            return f"Line {number} differs only in whitespace. Read it again and copy it exactly."
    return "Read the file again and copy the passage exactly, including whitespace."


def _format_line_numbers(text: str, old: str) -> str:
    line_numbers: list[str] = []
    position = text.find(old)
    while position >= 0 and len(line_numbers) <= MAX_LINES_NAMED:
        line_numbers.append(str(text.count("\n", 0, position) + 1))
        position = text.find(old, position + len(old))
    ellipsis = " …" if len(line_numbers) > MAX_LINES_NAMED else ""
    return ", ".join(line_numbers[:MAX_LINES_NAMED]) + ellipsis


async def _handle_edit_file(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path = resolve_writable_path(arguments["path"])
    return await run_in_thread(_edit_file, get_workspace(context), path, arguments["edits"])


def _edit_file(workspace: Workspace, path: str, edits: list[dict[str, Any]]) -> str:
    with workspace.open() as folder, workspace.lock(folder):
        existing_entry = folder.find_entry(path)
        if existing_entry is None:
            raise build_not_found_error(path)
        before = decode_text(path, folder.read(path, MAX_FILE_BYTES))
        after = apply_edits(before.text, edits)
        data = before.encode(after)
        require_room_for_file(workspace, folder, path, len(data), existing_entry)
        folder.write(path, data)
    count = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
    return f"Changed {path}: {count}.\n{_format_diff(before.text, after)}"


def _format_diff(before: str, after: str) -> str:
    if len(before) + len(after) > MAX_DIFFED_LENGTH:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    text = "\n".join(list(lines)[2:])
    return (
        text if len(text) <= MAX_DIFF_LENGTH else f"{text[:MAX_DIFF_LENGTH]}\n[the diff continues]"
    )


EDIT_TOOLS = (
    BuiltinTool(
        name="edit_file",
        description=format_message(
            "Replace exact passages of a text file in the workspace. Each `old` must occur "
            "exactly once, unless `every` is set, which replaces all occurrences. If one "
            "edit doesn't match, nothing is changed."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "path": PATH_SCHEMA,
                "edits": {
                    "type": "array",
                    "minItems": 1,
                    "maxItems": MAX_EDITS,
                    "items": {
                        "type": "object",
                        "properties": {
                            "old": {
                                "type": "string",
                                "minLength": 1,
                                "maxLength": MAX_PASSAGE_LENGTH,
                            },
                            "new": {"type": "string", "maxLength": MAX_PASSAGE_LENGTH},
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
        run=_handle_edit_file,
        toolset="edit",
        reads_workspace=True,
        writes_workspace=True,
        hints=BuiltinToolHints(read_only=False, destructive=True, idempotent=False),
    ),
)
