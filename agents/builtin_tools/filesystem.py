"""The kit `filesystem`: list, read, write, move and delete within the workspace (FEATURES E3)."""

import base64
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from io import StringIO
from typing import Any

from agents.builtin_tools.tool import BuiltinTool, Context, Hints
from agents.builtin_tools.workspaces import INSIDE, Workspace, beside, workspace_of
from agents.pictures import LARGEST, kind_of
from bonobot.lib.beneath import Entry, Folder
from bonobot.lib.paths import PathRefused, missing, parts_of
from bonobot.lib.problems import Forbidden
from bonobot.lib.sayings import say
from mcp_servers.labels import Label

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
class Text:
    """A file's text and whether it begins with a byte order mark."""

    text: str
    mark: bool = False

    def encoded(self, text: str) -> bytes:
        """Return another text as this file would hold it."""
        return text.encode("utf-8-sig" if self.mark else "utf-8")


def within(path: str) -> str:
    """Return a path beneath the workspace, also one as commands in the sandbox write it."""
    if path == INSIDE or path.startswith(f"{INSIDE}/"):
        path = path[len(INSIDE) :].lstrip("/")
    return "/".join(parts_of(path))


def writable(path: str) -> str:
    """Return a path that may be changed by itself; raises `Forbidden` within a repository's own.

    Whoever writes there decides what git runs (hooks, filters), which no tool but a shell may.
    """
    found = within(path)
    if REPOSITORY in (part.lower() for part in found.split("/")):
        raise Forbidden(
            say("`{found}` belongs to a repository's own files.", found=found[:200]),
            code="repository_inside",
            field="path",
            remedy="The git tools change a repository; its files beside `.git` can be written.",
        )
    return found


def workspace(context: Context) -> Workspace:
    """Return where the caller works."""
    return workspace_of(context.organization_id, context.agent_id, context.toolbox)


def text_of(path: str, data: bytes) -> Text:
    """Return a file's text; raises `PathRefused` (`not_text`) for anything but UTF-8."""
    mark = data.startswith(b"\xef\xbb\xbf")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise PathRefused(
            say(
                "`{path}` is no UTF-8 text; it has {count:,} bytes.",
                path=path,
                count=len(data),
            ),
            code="not_text",
            field="path",
            remedy="Only text and images (PNG, JPEG, GIF, WebP) can be read.",
        )
    return Text(text, mark)


def lines_of(text: str) -> list[str]:
    """Return the lines with their ends, as editors count them: only a line feed ends one."""
    return StringIO(text, newline="\n").readlines()


async def _list(context: Context, arguments: dict[str, Any]) -> str:
    return await beside(_listed, workspace(context), arguments)


def _listed(place: Workspace, arguments: dict[str, Any]) -> str:
    path, glob = within(arguments.get("path", ".")), arguments.get("glob", "")
    with place.open() as folder:
        if glob or arguments.get("recursive"):
            entries, more = _matching(folder, path, glob)
        else:
            entries, more = folder.children(path, MOST_LISTED)
    lines = [_line(one) for one in entries]
    if more:
        lines.append(f"[more than {len(entries)}: name a folder or a glob to see fewer]")
    return "\n".join(lines) or "There is nothing here."


def _matching(folder: Folder, path: str, glob: str) -> tuple[list[Entry], bool]:
    found: list[Entry] = []
    for number, entry in enumerate(folder.walk(path, skip=(REPOSITORY,))):
        if number == LOOKED_AT or len(found) == MOST_LISTED:
            return found, True
        if not glob or named(entry.path, path, glob):
            found.append(entry)
    return found, False


def named(path: str, base: str, glob: str) -> bool:
    """Tell whether a glob fits a file: its name, or its path below `base` where it has a slash."""
    below = path[len(base) + 1 :] if base else path
    if "/" not in glob:
        return fnmatchcase(below.rpartition("/")[2], glob)
    return fnmatchcase(below, glob) or (glob.startswith("**/") and fnmatchcase(below, glob[3:]))


def _line(entry: Entry) -> str:
    tail = {"folder": "/", "link": " (symbolic link, not followed)", "other": " (no file)"}
    size = f"  {entry.size:,} bytes" if entry.kind == "file" else ""
    return f"{entry.path}{tail.get(entry.kind, '')}{size}"


async def _info(context: Context, arguments: dict[str, Any]) -> str:
    return await beside(_described, workspace(context), within(arguments["path"]))


def _described(place: Workspace, path: str) -> str:
    with place.open() as folder:
        entry = folder.look(path)
        if entry is None:
            raise missing(path)
        used = "" if path or place.attached else _used(place, folder)
    changed = datetime.fromtimestamp(entry.changed / 1e9, UTC).isoformat(timespec="seconds")
    lines = [path or ".", f"kind: {entry.kind}", f"bytes: {entry.size}", f"changed: {changed}"]
    if entry.kind == "file" and entry.links > 1:
        lines.append(f"names: {entry.links} (hard links: not read or written)")
    return "\n".join(lines) + used


def _used(place: Workspace, folder: Folder) -> str:
    used = place.usage(folder)
    more = "more than " if used.more else ""
    return (
        f"\nholds: {more}{used.size:,} of {place.most_bytes:,} bytes, "
        f"{more}{used.files:,} of {place.most_files:,} files and folders"
    )


async def _read(context: Context, arguments: dict[str, Any]) -> str | dict[str, Any]:
    return await beside(_shown, workspace(context), arguments)


def _shown(place: Workspace, arguments: dict[str, Any]) -> str | dict[str, Any]:
    path = within(arguments["path"])
    with place.open() as folder:
        data = folder.read(path, MOST_READ)
    if (kind := kind_of(data)) and len(data) <= LARGEST:
        return _image(path, kind, data)
    lines = lines_of(text_of(path, data).text)
    first = arguments.get("first_line", 1)
    shown = lines[first - 1 : first - 1 + arguments.get("lines", TEXT_LINES)]
    last = first - 1 + len(shown)
    if first == 1 and last == len(lines):
        return "".join(shown)
    return f"{''.join(shown)}\n[lines {first} to {last} of {len(lines)}]"


def _image(path: str, kind: str, data: bytes) -> dict[str, Any]:
    image = {"type": "image", "mimeType": kind, "data": base64.b64encode(data).decode()}
    return {"content": [{"type": "text", "text": f"{path}, {len(data):,} bytes"}, image]}


async def _write(context: Context, arguments: dict[str, Any]) -> str:
    return await beside(_written, workspace(context), arguments)


def _written(place: Workspace, arguments: dict[str, Any]) -> str:
    path, data = writable(arguments["path"]), arguments["text"].encode("utf-8", "replace")
    with place.open() as folder, place.changing(folder):
        there = folder.look(path)
        if there is not None and arguments.get("new"):
            raise PathRefused(
                say("`{path}` is there already.", path=path),
                code="already_there",
                field="path",
                remedy="Choose another name, or leave `new` out to replace it.",
            )
        room_for(place, folder, path, len(data), there)
        made = folder.write(path, data, make_folders=True)
    return f"{'Made' if made else 'Replaced'} {path}, {len(data):,} bytes."


def room_for(place: Workspace, folder: Folder, path: str, size: int, there: Entry | None) -> None:
    """Raise `QuotaExceeded` where a file of that size doesn't fit in place of what is there."""
    parts = path.split("/")
    above = ("/".join(parts[:depth]) for depth in range(1, len(parts)))
    folders = 0 if there else sum(folder.look(one) is None for one in above)
    place.require_room(
        folder, size - (there.size if there else 0), folders + (0 if there is not None else 1)
    )


async def _make_folder(context: Context, arguments: dict[str, Any]) -> str:
    return await beside(_folder_made, workspace(context), writable(arguments["path"]))


def _folder_made(place: Workspace, path: str) -> str:
    with place.open() as folder, place.changing(folder):
        place.require_room(folder, 0, len(parts_of(path)))
        made = folder.make_folder(path)
    return f"Made {path}." if made else f"{path} was there."


async def _move(context: Context, arguments: dict[str, Any]) -> str:
    path, target = writable(arguments["path"]), writable(arguments["to"])
    return await beside(
        _moved, workspace(context), path, target, overwrite=arguments.get("overwrite", False)
    )


def _moved(place: Workspace, path: str, target: str, *, overwrite: bool) -> str:
    with place.open() as folder, place.changing(folder):
        folder.move(path, target, overwrite=overwrite)
    return f"Moved {path} to {target}."


async def _delete(context: Context, arguments: dict[str, Any]) -> str:
    path = writable(arguments["path"])
    whole = arguments.get("with_contents", False)
    return await beside(_deleted, workspace(context), path, with_contents=whole)


def _deleted(place: Workspace, path: str, *, with_contents: bool) -> str:
    with place.open() as folder, place.changing(folder):
        found = folder.delete(path, with_contents=with_contents)
    return f"Deleted the {found.kind} {path}."


def _schema(required: tuple[str, ...], **properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


_CHANGES = Hints(read_only=False, destructive=True, idempotent=False)

TOOLS = (
    BuiltinTool(
        name="list_files",
        description=say(
            "List a folder of the workspace; with `recursive` or a `glob` (`*.py`, "
            "`src/**/*.md`) everything beneath it that fits."
        ),
        input_schema=_schema(
            (),
            path=FOLDER_PATH,
            glob={"type": "string", "maxLength": 256},
            recursive={"type": "boolean"},
        ),
        run=_list,
        kit=KIT,
        labels=(Label.REPEATABLE,),
        reads=True,
    ),
    BuiltinTool(
        name="file_info",
        description=say(
            "Say what a path of the workspace is: file or folder, bytes, when changed. Of "
            "`.` also how much the workspace may hold."
        ),
        input_schema=_schema(("path",), path=PATH),
        run=_info,
        kit=KIT,
        labels=(Label.REPEATABLE,),
        reads=True,
    ),
    BuiltinTool(
        name="read_file",
        description=say(
            "Read a text file of the workspace, all of it or some lines; an image (PNG, "
            "JPEG, GIF, WebP) is shown as one."
        ),
        input_schema=_schema(
            ("path",),
            path=PATH,
            first_line={"type": "integer", "minimum": 1, "description": "1 is the first."},
            lines={"type": "integer", "minimum": 1, "maximum": 100_000},
        ),
        run=_read,
        kit=KIT,
        labels=(Label.REPEATABLE,),
        reads=True,
    ),
    BuiltinTool(
        name="write_file",
        description=say(
            "Write a text file of the workspace, with the folders above it; one that is "
            "there is replaced as a whole, or refused with `new`."
        ),
        input_schema=_schema(
            ("path", "text"),
            path=PATH,
            text={"type": "string", "maxLength": MOST_WRITTEN},
            new={"type": "boolean", "description": "Refuse where the file is there already."},
        ),
        run=_write,
        kit=KIT,
        writes=True,
        hints=Hints(read_only=False, destructive=True, idempotent=True),
    ),
    BuiltinTool(
        name="make_folder",
        description=say("Make a folder of the workspace, with those above it."),
        input_schema=_schema(("path",), path=PATH),
        run=_make_folder,
        kit=KIT,
        labels=(Label.REPEATABLE,),
        writes=True,
        hints=Hints(read_only=False, destructive=False, idempotent=True),
    ),
    BuiltinTool(
        name="move_file",
        description=say("Move or rename a file or folder within the workspace."),
        input_schema=_schema(("path", "to"), path=PATH, to=PATH, overwrite={"type": "boolean"}),
        run=_move,
        kit=KIT,
        writes=True,
        hints=_CHANGES,
    ),
    BuiltinTool(
        name="delete_file",
        description=say(
            "Delete a file or an empty folder of the workspace, or a folder with its contents."
        ),
        input_schema=_schema(("path",), path=PATH, with_contents={"type": "boolean"}),
        run=_delete,
        kit=KIT,
        writes=True,
        hints=_CHANGES,
    ),
)
