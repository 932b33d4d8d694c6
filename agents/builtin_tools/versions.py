"""The kit `git`: see and commit changes of a repository in the workspace (FEATURES E3).

git runs in the sandbox, without a network, and with nothing of the repository's configuration that
could make it run something else (`repositories`).
"""

from typing import Any

from agents.builtin_tools.filesystem import FOLDER_PATH, PATH, within, workspace, writable
from agents.builtin_tools.repositories import LIMITS, finished, git, has, read_config
from agents.builtin_tools.sandbox import Box
from agents.builtin_tools.tool import BuiltinTool, Context, Hints
from agents.builtin_tools.workspaces import Workspace, beside
from bonobot.lib.problems import Conflict
from bonobot.lib.sayings import say
from mcp_servers.labels import Label

KIT = "git"
MOST_PATHS = 200
MOST_COMMITS = 200
LONGEST_MESSAGE = 20_000
# Nothing that git could take for an option, and none of its wilder ways to name a revision.
REVISION = r"^[A-Za-z0-9_@][A-Za-z0-9_./~^@{}:+=-]{0,255}$"
PLAIN = ("--no-ext-diff", "--no-textconv", "--no-color")
LOG = "--format=%H%n%an <%ae>, %aI%n    %s%n"


async def _run(
    context: Context, arguments: dict[str, Any], *words: str, changes: bool = False
) -> str:
    """Run git in the repository that the arguments name, as the agent."""
    place, path = workspace(context), within(arguments.get("repository", "."))
    config = await beside(_config, place, path, changes=changes)
    return await git(place, path, config, words, _who(context))


def _config(place: Workspace, path: str, *, changes: bool) -> bytes:
    if changes:
        with place.open() as folder:
            place.require_room(folder, 1)
    return read_config(place, path)


def _who(context: Context) -> dict[str, str]:
    """Return whose commits these are: the agent's, at an address that nobody has."""
    name = " ".join(context.snapshot.agent_name.split()) or "agent"
    address = f"{context.snapshot.agent_slug or 'agent'}@bonobot.invalid"
    return {
        **{f"GIT_{part}_NAME": name for part in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{part}_EMAIL": address for part in ("AUTHOR", "COMMITTER")},
    }


def _paths(arguments: dict[str, Any]) -> tuple[str, ...]:
    paths = [within(path) or "." for path in arguments.get("paths", ())]
    return ("--", *paths) if paths else ("--",)


async def _status(context: Context, arguments: dict[str, Any]) -> str:
    words = ("status", "--short", "--branch", "--ignore-submodules=all", "--untracked-files=normal")
    return await _run(context, arguments, *words)


async def _diff(context: Context, arguments: dict[str, Any]) -> str:
    between = [arguments[name] for name in ("from", "to") if name in arguments]
    staged = ("--cached",) if arguments.get("staged") else ()
    words = ("diff", *PLAIN, "--ignore-submodules=all", *staged, "--end-of-options", *between)
    found = await _run(context, arguments, *words, *_paths(arguments))
    return found or "There is no difference."


async def _log(context: Context, arguments: dict[str, Any]) -> str:
    most = str(arguments.get("most", 20))
    start = (arguments["revision"],) if "revision" in arguments else ()
    words = ("log", LOG, "--no-show-signature", "--no-color", f"--max-count={most}")
    return await _run(context, arguments, *words, "--end-of-options", *start, *_paths(arguments))


async def _show(context: Context, arguments: dict[str, Any]) -> str:
    words = ("show", *PLAIN, "--no-show-signature", "--ignore-submodules=all", "--end-of-options")
    return await _run(context, arguments, *words, arguments["revision"], *_paths(arguments))


async def _add(context: Context, arguments: dict[str, Any]) -> str:
    chosen = _paths(arguments) if arguments.get("paths") else ("--all",)
    await _run(context, arguments, "add", *chosen, changes=True)
    return await _status(context, arguments)


async def _commit(context: Context, arguments: dict[str, Any]) -> str:
    words = ("commit", "--no-verify", "--no-gpg-sign", "--no-edit", "--cleanup=verbatim")
    message = f"--message={arguments['message']}"
    return await _run(context, arguments, *words, message, changes=True)


async def _init(context: Context, arguments: dict[str, Any]) -> str:
    place, path = workspace(context), writable(arguments.get("repository", "."))
    await beside(_make_way, place, path)
    box = Box(root=place.root, at=path, limits=LIMITS)
    words = ("init", "--template=", "--initial-branch=main", "--quiet", ".")
    await finished(place, box, words, {})
    return f"Made a repository at {path or '.'}, on the branch main."


def _make_way(place: Workspace, path: str) -> None:
    if has(place, f"{path}/.git" if path else ".git"):
        raise Conflict(
            say("There is a repository at `{path}` already.", path=path or "."),
            code="already_there",
            field="repository",
            remedy="Use it, or name another folder.",
        )
    with place.open() as folder, place.changing(folder):
        place.require_room(folder, 1)
        folder.make_folder(path)


def _schema(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    repository = FOLDER_PATH | {"description": "The folder with `.git`; left out: the workspace."}
    return {
        "type": "object",
        "properties": {"repository": repository, **properties},
        "required": list(required),
        "additionalProperties": False,
    }


_REVISION = {"type": "string", "pattern": REVISION}
_PATHS = {
    "type": "array",
    "items": PATH,
    "maxItems": MOST_PATHS,
    "description": "In the repository.",
}
_CHANGES = Hints(read_only=False, destructive=False, idempotent=False)


def _reading(name: str, description: str, run: Any, schema: dict[str, Any]) -> BuiltinTool:
    return BuiltinTool(
        name=name,
        description=description,
        input_schema=schema,
        run=run,
        kit=KIT,
        labels=(Label.REPEATABLE,),
        reads=True,
    )


def _changing(name: str, description: str, run: Any, schema: dict[str, Any]) -> BuiltinTool:
    return BuiltinTool(
        name=name,
        description=description,
        input_schema=schema,
        run=run,
        kit=KIT,
        reads=True,
        writes=True,
        hints=_CHANGES,
    )


TOOLS = (
    _reading(
        "git_status",
        say("Say what is changed, staged and new in a repository."),
        _status,
        _schema(),
    ),
    _reading(
        "git_diff",
        say("Show what differs: in the working tree, staged, or between two revisions."),
        _diff,
        _schema(paths=_PATHS, staged={"type": "boolean"}, **{"from": _REVISION, "to": _REVISION}),
    ),
    _reading(
        "git_log",
        say("List commits, the newest first."),
        _log,
        _schema(
            revision=_REVISION,
            paths=_PATHS,
            most={"type": "integer", "minimum": 1, "maximum": MOST_COMMITS},
        ),
    ),
    _reading(
        "git_show",
        say("Show a commit with its changes, or a file as it was (`HEAD~2:src/main.py`)."),
        _show,
        _schema("revision", revision=_REVISION, paths=_PATHS),
    ),
    _changing(
        "git_add",
        say("Stage files for the next commit; without paths, everything that changed."),
        _add,
        _schema(paths=_PATHS),
    ),
    _changing(
        "git_commit",
        say("Commit what is staged, in the agent's name. No hook runs and nothing is signed."),
        _commit,
        _schema(
            "message",
            message={"type": "string", "minLength": 1, "maxLength": LONGEST_MESSAGE},
        ),
    ),
    _changing("git_init", say("Make a repository in a folder of the workspace."), _init, _schema()),
)
