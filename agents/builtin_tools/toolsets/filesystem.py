"""The filesystem and edit toolsets: list, read, write and edit files."""

import base64
import difflib
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from io import StringIO
from typing import Any

from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import INSIDE, Workspace, build_workspace, run_in_thread
from agents.images import LARGEST, detect_media_type
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

KIT = "filesystem"
MOST_READ = 4 * 1024 * 1024
MOST_WRITTEN = 2 * 1024 * 1024  # characters of one call
MOST_LISTED = 1000
LOOKED_AT = 50_000
TEXT_LINES = 2000
REPOSITORY = ".git"

PATH = {"type": "string", "minLength": 1, "maxLength": 4096}
FOLDER_PATH = PATH | {"description": "A folder of the workspace; left out: the workspace itself."}


@dataclass(frozen=True, slots=True)
class FileText:
    """A file's text, and whether it starts with a byte order mark."""

    text: str
    mark: bool = False

    def encoded(self, text: str) -> bytes:
        """Return a text encoded as this file is."""
        return text.encode("utf-8-sig" if self.mark else "utf-8")


def normalize_path(path: str) -> str:
    """Return a path relative to the workspace; `/workspace/…` is accepted too."""
    if path == INSIDE or path.startswith(f"{INSIDE}/"):
        path = path[len(INSIDE) :].lstrip("/")
    return "/".join(split_path(path))


def resolve_writable_path(path: str) -> str:
    """Return a normalized path that may be written; raises `Forbidden` inside `.git`.

    Files in `.git` decide what git runs (hooks, filters), which only the shell may do.
    """
    found = normalize_path(path)
    if REPOSITORY in (part.lower() for part in found.split("/")):
        raise Forbidden(
            format_message("`{found}` belongs to a repository's own files.", found=found[:200]),
            code="repository_inside",
            field="path",
            remedy="The git tools change a repository; its files beside `.git` can be written.",
        )
    return found


def get_workspace(context: BuiltinToolContext) -> Workspace:
    """Return the workspace of the calling agent."""
    return build_workspace(context.organization_id, context.agent_id, context.toolbox)


def decode_text(path: str, data: bytes) -> FileText:
    """Return a file's text; raises `PathRefused` (`not_text`) for anything but UTF-8."""
    mark = data.startswith(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise PathRefused(
            format_message(
                "`{path}` is no UTF-8 text; it has {count:,} bytes.",
                path=path,
                count=len(data),
            ),
            code="not_text",
            field="path",
            remedy="Only text and images (PNG, JPEG, GIF, WebP) can be read.",
        )
    return FileText(text, mark)


def split_lines(text: str) -> list[str]:
    """Return the lines with their endings; only a line feed ends a line."""
    return StringIO(text, newline="\n").readlines()


async def _list(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(_list_entries, get_workspace(context), arguments)


def _list_entries(place: Workspace, arguments: dict[str, Any]) -> str:
    path, glob = normalize_path(arguments.get("path", ".")), arguments.get("glob", "")
    with place.open() as folder:
        if glob or arguments.get("recursive"):
            entries, more = _filter_entries(folder, path, glob)
        else:
            entries, more = folder.children(path, MOST_LISTED)
    lines = [_format_entry(one) for one in entries]
    if more:
        lines.append(f"[more than {len(entries)}: name a folder or a glob to see fewer]")
    return "\n".join(lines) or "There is nothing here."


def _filter_entries(folder: ConfinedFolder, path: str, glob: str) -> tuple[list[FolderEntry], bool]:
    found: list[FolderEntry] = []
    for number, entry in enumerate(folder.walk(path, skip=(REPOSITORY,))):
        if number == LOOKED_AT or len(found) == MOST_LISTED:
            return found, True
        if not glob or match_glob(entry.path, path, glob):
            found.append(entry)
    return found, False


def match_glob(path: str, base: str, glob: str) -> bool:
    """Return whether a glob matches a file's name, or its path below `base` if it has a slash."""
    below = path[len(base) + 1 :] if base else path
    if "/" not in glob:
        return fnmatchcase(below.rpartition("/")[2], glob)
    return fnmatchcase(below, glob) or (glob.startswith("**/") and fnmatchcase(below, glob[3:]))


def _format_entry(entry: FolderEntry) -> str:
    tail = {"folder": "/", "link": " (symbolic link, not followed)", "other": " (no file)"}
    size = f"  {entry.size:,} bytes" if entry.kind == "file" else ""
    return f"{entry.path}{tail.get(entry.kind, '')}{size}"


async def _describe(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(
        _describe_path, get_workspace(context), normalize_path(arguments["path"])
    )


def _describe_path(place: Workspace, path: str) -> str:
    with place.open() as folder:
        entry = folder.look(path)
        if entry is None:
            raise build_not_found_error(path)
        used = "" if path or place.attached else _format_usage(place, folder)
    changed = datetime.fromtimestamp(entry.changed / 1e9, UTC).isoformat(timespec="seconds")
    lines = [path or ".", f"kind: {entry.kind}", f"bytes: {entry.size}", f"changed: {changed}"]
    if entry.kind == "file" and entry.links > 1:
        lines.append(f"names: {entry.links} (hard links: not read or written)")
    return "\n".join(lines) + used


def _format_usage(place: Workspace, folder: ConfinedFolder) -> str:
    used = place.usage(folder)
    more = "more than " if used.more else ""
    return (
        f"\nholds: {more}{used.size:,} of {place.most_bytes:,} bytes, "
        f"{more}{used.files:,} of {place.most_files:,} files and folders"
    )


async def _read(context: BuiltinToolContext, arguments: dict[str, Any]) -> str | dict[str, Any]:
    return await run_in_thread(_read_file, get_workspace(context), arguments)


def _read_file(place: Workspace, arguments: dict[str, Any]) -> str | dict[str, Any]:
    path = normalize_path(arguments["path"])
    with place.open() as folder:
        data = folder.read(path, MOST_READ)
    if (kind := detect_media_type(data)) and len(data) <= LARGEST:
        return _build_image(path, kind, data)
    lines = split_lines(decode_text(path, data).text)
    first = arguments.get("first_line", 1)
    shown = lines[first - 1 : first - 1 + arguments.get("lines", TEXT_LINES)]
    last = first - 1 + len(shown)
    if first == 1 and last == len(lines):
        return "".join(shown)
    return f"{''.join(shown)}\n[lines {first} to {last} of {len(lines)}]"


def _build_image(path: str, kind: str, data: bytes) -> dict[str, Any]:
    image = {"type": "image", "mimeType": kind, "data": base64.b64encode(data).decode()}
    return {"content": [{"type": "text", "text": f"{path}, {len(data):,} bytes"}, image]}


async def _write(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(_write_file, get_workspace(context), arguments)


def _write_file(place: Workspace, arguments: dict[str, Any]) -> str:
    path, data = (
        resolve_writable_path(arguments["path"]),
        arguments["text"].encode("utf-8", "replace"),
    )
    with place.open() as folder, place.changing(folder):
        there = folder.look(path)
        if there is not None and arguments.get("new"):
            raise PathRefused(
                format_message("`{path}` is there already.", path=path),
                code="already_there",
                field="path",
                remedy="Choose another name, or leave `new` out to replace it.",
            )
        require_room(place, folder, path, len(data), there)
        made = folder.write(path, data, make_folders=True)
    return f"{'Made' if made else 'Replaced'} {path}, {len(data):,} bytes."


def require_room(
    place: Workspace, folder: ConfinedFolder, path: str, size: int, there: FolderEntry | None
) -> None:
    """Raise `QuotaExceeded` if a file of this size doesn't fit in place of the existing one."""
    parts = path.split("/")
    above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    folders = 0 if there else sum(folder.look(one) is None for one in above)
    place.require_room(
        folder, size - (there.size if there else 0), folders + (0 if there is not None else 1)
    )


async def _make_folder(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await run_in_thread(
        _create_folder, get_workspace(context), resolve_writable_path(arguments["path"])
    )


def _create_folder(place: Workspace, path: str) -> str:
    with place.open() as folder, place.changing(folder):
        place.require_room(folder, 0, len(split_path(path)))
        made = folder.make_folder(path)
    return f"Made {path}." if made else f"{path} was there."


async def _move(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path, target = resolve_writable_path(arguments["path"]), resolve_writable_path(arguments["to"])
    return await run_in_thread(
        _move_path,
        get_workspace(context),
        path,
        target,
        overwrite=arguments.get("overwrite", False),
    )


def _move_path(place: Workspace, path: str, target: str, *, overwrite: bool) -> str:
    with place.open() as folder, place.changing(folder):
        folder.move(path, target, overwrite=overwrite)
    return f"Moved {path} to {target}."


async def _delete(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path = resolve_writable_path(arguments["path"])
    whole = arguments.get("with_contents", False)
    return await run_in_thread(_delete_path, get_workspace(context), path, with_contents=whole)


def _delete_path(place: Workspace, path: str, *, with_contents: bool) -> str:
    with place.open() as folder, place.changing(folder):
        found = folder.delete(path, with_contents=with_contents)
    return f"Deleted the {found.kind} {path}."


def _build_schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_CHANGES = BuiltinToolHints(read_only=False, destructive=True, idempotent=False)

FILESYSTEM_TOOLS = (
    BuiltinTool(
        name="list_files",
        description=format_message(
            "List a folder of the workspace; with `recursive` or a `glob` (`*.py`, "
            "`src/**/*.md`) everything beneath it that fits."
        ),
        input_schema=_build_schema(
            (),
            path=FOLDER_PATH,
            glob={"type": "string", "maxLength": 256},
            recursive={"type": "boolean"},
        ),
        run=_list,
        kit=KIT,
        labels=(FlowLabel.REPEATABLE,),
        reads=True,
    ),
    BuiltinTool(
        name="file_info",
        description=format_message(
            "Say what a path of the workspace is: file or folder, bytes, when changed. Of "
            "`.` also how much the workspace may hold."
        ),
        input_schema=_build_schema(("path",), path=PATH),
        run=_describe,
        kit=KIT,
        labels=(FlowLabel.REPEATABLE,),
        reads=True,
    ),
    BuiltinTool(
        name="read_file",
        description=format_message(
            "Read a text file of the workspace, all of it or some lines; an image (PNG, "
            "JPEG, GIF, WebP) is shown as one."
        ),
        input_schema=_build_schema(
            ("path",),
            path=PATH,
            first_line={"type": "integer", "minimum": 1, "description": "1 is the first."},
            lines={"type": "integer", "minimum": 1, "maximum": 100_000},
        ),
        run=_read,
        kit=KIT,
        labels=(FlowLabel.REPEATABLE,),
        reads=True,
    ),
    BuiltinTool(
        name="write_file",
        description=format_message(
            "Write a text file of the workspace, with the folders above it; one that is "
            "there is replaced as a whole, or refused with `new`."
        ),
        input_schema=_build_schema(
            ("path", "text"),
            path=PATH,
            text={"type": "string", "maxLength": MOST_WRITTEN},
            new={"type": "boolean", "description": "Refuse where the file is there already."},
        ),
        run=_write,
        kit=KIT,
        writes=True,
        hints=BuiltinToolHints(read_only=False, destructive=True, idempotent=True),
    ),
    BuiltinTool(
        name="make_folder",
        description=format_message("Make a folder of the workspace, with those above it."),
        input_schema=_build_schema(("path",), path=PATH),
        run=_make_folder,
        kit=KIT,
        labels=(FlowLabel.REPEATABLE,),
        writes=True,
        hints=BuiltinToolHints(read_only=False, destructive=False, idempotent=True),
    ),
    BuiltinTool(
        name="move_file",
        description=format_message("Move or rename a file or folder within the workspace."),
        input_schema=_build_schema(
            ("path", "to"), path=PATH, to=PATH, overwrite={"type": "boolean"}
        ),
        run=_move,
        kit=KIT,
        writes=True,
        hints=_CHANGES,
    ),
    BuiltinTool(
        name="delete_file",
        description=format_message(
            "Delete a file or an empty folder of the workspace, or a folder with its contents."
        ),
        input_schema=_build_schema(("path",), path=PATH, with_contents={"type": "boolean"}),
        run=_delete,
        kit=KIT,
        writes=True,
        hints=_CHANGES,
    ),
)


MOST_EDITS = 100
PASSAGE = 200_000
DIFF_SHOWN = 16_384
DIFFED = 400_000  # characters; longer files get no diff
PLACES_NAMED = 5


def apply_edits(text: str, edits: list[dict[str, Any]]) -> str:
    """Return a text with all edits applied in order.

    Raises `InvalidInput` for the first edit whose `old` is missing or ambiguous.
    """
    for number, edit in enumerate(edits):
        old, new = edit["old"], edit["new"]
        if old == new:
            raise _build_edit_error(
                number, "same_text", "`old` and `new` are the same.", "Leave it out."
            )
        found = text.count(old)
        if not found:
            raise _build_edit_error(
                number,
                "not_found",
                _describe_missing_text(text, old),
                _suggest_near_match(text, old),
            )
        if found > 1 and not edit.get("every"):
            raise _build_edit_error(
                number,
                "ambiguous",
                format_message(
                    "`old` is there {found} times, on the lines {text}.",
                    found=found,
                    text=_format_line_numbers(text, old),
                ),
                "Write more of what stands around it, or set `every`.",
            )
        text = text.replace(old, new)
    return text


def _build_edit_error(number: int, code: str, why: str, remedy: str) -> InvalidInput:
    return InvalidInput(
        format_message("Nothing was changed. Edit {number}: {why}", number=number + 1, why=why),
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
    wanted = "".join(old.split("\n", 1)[0].split())
    for number, line in enumerate(split_lines(text), start=1):
        if wanted and "".join(line.split()) == wanted:
            return f"Line {number} differs in its blanks only; read it again and copy it exactly."
    return "Read the file again and copy the passage exactly, blanks and all."


def _format_line_numbers(text: str, old: str) -> str:
    found: list[str] = []
    at = text.find(old)
    while at >= 0 and len(found) <= PLACES_NAMED:
        found.append(str(text.count("\n", 0, at) + 1))
        at = text.find(old, at + len(old))
    more = " …" if len(found) > PLACES_NAMED else ""
    return ", ".join(found[:PLACES_NAMED]) + more


async def _edit(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path = resolve_writable_path(arguments["path"])
    return await run_in_thread(_edit_file, get_workspace(context), path, arguments["edits"])


def _edit_file(place: Workspace, path: str, edits: list[dict[str, Any]]) -> str:
    with place.open() as folder, place.changing(folder):
        there = folder.look(path)
        if there is None:
            raise build_not_found_error(path)
        before = decode_text(path, folder.read(path, MOST_READ))
        after = apply_edits(before.text, edits)
        data = before.encoded(after)
        require_room(place, folder, path, len(data), there)
        folder.write(path, data)
    count = "1 edit" if len(edits) == 1 else f"{len(edits)} edits"
    return f"Changed {path}: {count}.\n{_diff(before.text, after)}"


def _diff(before: str, after: str) -> str:
    if len(before) + len(after) > DIFFED:
        return ""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=2)
    text = "\n".join(list(lines)[2:])
    return text if len(text) <= DIFF_SHOWN else f"{text[:DIFF_SHOWN]}\n[the difference goes on]"


EDIT_TOOLS = (
    BuiltinTool(
        name="edit_file",
        description=format_message(
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
        hints=BuiltinToolHints(read_only=False, destructive=True, idempotent=False),
    ),
)
