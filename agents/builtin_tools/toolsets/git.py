"""The git toolset, and the filter for a repository's configuration.

git runs in the sandbox without network access.

The configuration of an untrusted repository can name programs that git runs: hooks, filters, text
conversions, a monitor, a pager, signing, transports. So only keys known to be safe are copied to a
file of ours, which is mounted over the repository's own in the sandbox.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import re2

from agents.builtin_tools.command_sandbox import CommandSandbox, run
from agents.builtin_tools.toolsets.filesystem import (
    FOLDER_PATH,
    PATH,
    get_workspace,
    normalize_path,
    resolve_writable_path,
)
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import INSIDE, Workspace, run_in_thread
from bonobot.core.confined_folder import PathRefused
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Problem
from mcp_servers.client.server_sandbox import ProcessLimits
from mcp_servers.flow_labels import FlowLabel

Words = Sequence[str]
Env = Mapping[str, str]

LARGEST_CONFIG = 256 * 1024
GIT_S = 60.0
SHOWN_OF_FAILED = 4000  # characters, the last ones
LIMITS = ProcessLimits(memory_mib=1024, processes=64, open_files=1024, cpu_s=int(GIT_S))
# Keys as `git config --list` writes them, in lower case.
HARMLESS = re2.compile(
    r"core\.(?:repositoryformatversion|bare|filemode|symlinks|ignorecase|precomposeunicode|eol|"
    r"autocrlf|safecrlf|quotepath|abbrev|logallrefupdates|compression|bigfilethreshold)"
    r"|extensions\.(?:objectformat|compatobjectformat|refstorage)"
    r"|user\.(?:name|email)|i18n\.[a-z]+|init\.defaultbranch"
    r"|branch\..+\.(?:remote|merge)|remote\..+\.fetch"
)
SECTION = re2.compile(r'\[([A-Za-z0-9-]+)(?:\s+"([^"\\]*)")?\]')
MEMBER = re2.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
UNQUOTED = re2.compile(r'["\\\x00-\x1f]')
# Overrides every configuration file: no hooks, no network, no prompts.
SETTINGS = {
    "safe.directory": "*",
    "safe.bareRepository": "explicit",
    "core.hooksPath": "/dev/null",
    "core.fsmonitor": "false",
    "core.pager": "cat",
    "core.editor": "false",
    "core.attributesFile": "/dev/null",
    "core.excludesFile": "/dev/null",
    "diff.ignoreSubmodules": "all",
    "submodule.recurse": "false",
    "commit.gpgSign": "false",
    "tag.gpgSign": "false",
    "gc.auto": "0",
    "maintenance.auto": "false",
    "protocol.allow": "never",
    "credential.helper": "",
}
ENVIRONMENT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_ASKPASS": "/bin/false",
    "GIT_PAGER": "cat",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_NO_REPLACE_OBJECTS": "1",
    **{f"GIT_CONFIG_KEY_{n}": name for n, name in enumerate(SETTINGS)},
    **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(SETTINGS.values())},
    "GIT_CONFIG_COUNT": str(len(SETTINGS)),
}


class GitFailed(Problem):
    """git failed; the message contains its output."""

    code = "git_failed"
    status = 409
    title = "git failed"


def filter_config(config: bytes) -> str:
    """Return a configuration file with only the safe keys of a repository's configuration.

    Lines that this parses differently from git are left out, so git never sees them.
    """
    lines = ["[core]\n\trepositoryformatversion = 0\n"]
    section = inner = ""
    for line in config.decode("utf-8", "replace").splitlines():
        if header := SECTION.fullmatch(line.strip()):
            section, inner = header.group(1).lower(), header.group(2) or ""
            continue
        if not (member := MEMBER.fullmatch(line.strip())):
            continue
        name, value = member.group(1).lower(), member.group(2).strip()
        value = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
        path = ".".join(part for part in (section, inner, name) if part)
        if HARMLESS.fullmatch(path) and not UNQUOTED.search(value + inner):
            shown = f'{section} "{inner}"' if inner else section
            lines.append(f'[{shown}]\n\t{name} = "{value}"\n')
    return "".join(lines)


def read_config(place: Workspace, path: str) -> bytes:
    """Return a repository's unfiltered configuration; raises `GitFailed` or `PathRefused`.

    `.git` must be a folder with its own `config`: a linked worktree or a submodule has its
    repository, and so another configuration, elsewhere. Blocks.
    """
    base = f"{path}/.git" if path else ".git"
    with place.open() as folder:
        there = folder.look(base)
        if there is None:
            raise GitFailed(
                format_message("There is no repository at `{path}`.", path=path or "."),
                code="no_repository",
                field="path",
                remedy="Name the folder that holds `.git`, or make one with `git_init`.",
            )
        if there.kind != "folder" or folder.look(f"{base}/commondir"):
            raise PathRefused(
                format_message(
                    "`{path}` is a linked worktree or a submodule, or was made to look so.",
                    path=path or ".",
                ),
                code="not_a_repository",
                field="path",
                remedy="Work in the repository that it belongs to.",
            )
        return folder.read(f"{base}/config", LARGEST_CONFIG)


def has(place: Workspace, path: str) -> bool:
    """Return whether a path exists in the workspace. Blocks."""
    with place.open() as folder:
        return folder.look(path) is not None


@contextmanager
def open_safe_config(config: bytes) -> Iterator[Path]:
    """Yield a temporary file with the safe part of a configuration."""
    with TemporaryDirectory(prefix="bonobot-git-") as folder:
        file = Path(folder, "config")
        file.write_text(filter_config(config), encoding="utf-8")
        yield file


async def run_git(place: Workspace, path: str, config: bytes, words: Words, env: Env) -> str:
    """Run git in the repository at `path` and return its output; raises `GitFailed`."""
    root = f"{INSIDE}/{path}" if path else INSIDE
    inner = f"{path}/.git/config".lstrip("/")
    # Set explicitly: git searches for nothing, and the repository can't override it.
    where = {"GIT_DIR": f"{root}/.git", "GIT_WORK_TREE": root}
    with open_safe_config(config) as file:
        box = CommandSandbox(root=place.root, at=path, limits=LIMITS, covers={inner: file})
        return await run_sandboxed_git(place, box, words, {**where, **env})


async def run_sandboxed_git(place: Workspace, box: CommandSandbox, words: Words, env: Env) -> str:
    """Run git in a sandbox and return its output; raises `GitFailed`."""
    found = await run(place, box, ("git", *words), seconds=GIT_S, env={**ENVIRONMENT, **env})
    if found.ended or found.status:
        why = f"it was stopped ({found.ended})" if found.ended else f"status {found.status}"
        raise GitFailed(
            f"git did not do it, {why}.\n{found.out[-SHOWN_OF_FAILED:]}".strip(),
            remedy="Read what it says, and try otherwise.",
        )
    return found.out


KIT = "git"
MOST_PATHS = 200
MOST_COMMITS = 200
LONGEST_MESSAGE = 20_000
# Excludes options and unusual revision syntax.
REVISION = r"^[A-Za-z0-9_@][A-Za-z0-9_./~^@{}:+=-]{0,255}$"
PLAIN = ("--no-ext-diff", "--no-textconv", "--no-color")
LOG = "--format=%H%n%an <%ae>, %aI%n    %s%n"


async def _run(
    context: BuiltinToolContext, arguments: dict[str, Any], *words: str, changes: bool = False
) -> str:
    """Run git as the agent in the repository that the arguments name."""
    place, path = get_workspace(context), normalize_path(arguments.get("repository", "."))
    config = await run_in_thread(_read_repository_config, place, path, changes=changes)
    return await run_git(place, path, config, words, _build_identity(context))


def _read_repository_config(place: Workspace, path: str, *, changes: bool) -> bytes:
    if changes:
        with place.open() as folder:
            place.require_room(folder, 1)
    return read_config(place, path)


def _build_identity(context: BuiltinToolContext) -> dict[str, str]:
    """Return the agent's commit identity, with an address that can't exist."""
    name = " ".join(context.snapshot.agent_name.split()) or "agent"
    address = f"{context.snapshot.agent_slug or 'agent'}@bonobot.invalid"
    return {
        **{f"GIT_{part}_NAME": name for part in ("AUTHOR", "COMMITTER")},
        **{f"GIT_{part}_EMAIL": address for part in ("AUTHOR", "COMMITTER")},
    }


def _build_path_arguments(arguments: dict[str, Any]) -> tuple[str, ...]:
    paths = [normalize_path(path) or "." for path in arguments.get("paths", ())]
    return ("--", *paths) if paths else ("--",)


async def _show_status(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    words = ("status", "--short", "--branch", "--ignore-submodules=all", "--untracked-files=normal")
    return await _run(context, arguments, *words)


async def _diff(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    between = [arguments[name] for name in ("from", "to") if name in arguments]
    staged = ("--cached",) if arguments.get("staged") else ()
    words = ("diff", *PLAIN, "--ignore-submodules=all", *staged, "--end-of-options", *between)
    found = await _run(context, arguments, *words, *_build_path_arguments(arguments))
    return found or "There is no difference."


async def _log(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    most = str(arguments.get("most", 20))
    start = (arguments["revision"],) if "revision" in arguments else ()
    words = ("log", LOG, "--no-show-signature", "--no-color", f"--max-count={most}")
    return await _run(
        context, arguments, *words, "--end-of-options", *start, *_build_path_arguments(arguments)
    )


async def _show(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    words = ("show", *PLAIN, "--no-show-signature", "--ignore-submodules=all", "--end-of-options")
    return await _run(
        context, arguments, *words, arguments["revision"], *_build_path_arguments(arguments)
    )


async def _add(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    chosen = _build_path_arguments(arguments) if arguments.get("paths") else ("--all",)
    await _run(context, arguments, "add", *chosen, changes=True)
    return await _show_status(context, arguments)


async def _commit(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    words = ("commit", "--no-verify", "--no-gpg-sign", "--no-edit", "--cleanup=verbatim")
    message = f"--message={arguments['message']}"
    return await _run(context, arguments, *words, message, changes=True)


async def _init(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    place, path = get_workspace(context), resolve_writable_path(arguments.get("repository", "."))
    await run_in_thread(_make_way, place, path)
    box = CommandSandbox(root=place.root, at=path, limits=LIMITS)
    words = ("init", "--template=", "--initial-branch=main", "--quiet", ".")
    await run_sandboxed_git(place, box, words, {})
    return f"Made a repository at {path or '.'}, on the branch main."


def _make_way(place: Workspace, path: str) -> None:
    if has(place, f"{path}/.git" if path else ".git"):
        raise Conflict(
            format_message("There is a repository at `{path}` already.", path=path or "."),
            code="already_there",
            field="repository",
            remedy="Use it, or name another folder.",
        )
    with place.open() as folder, place.changing(folder):
        place.require_room(folder, 1)
        folder.make_folder(path)


def _build_schema(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
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
_CHANGES = BuiltinToolHints(read_only=False, destructive=False, idempotent=False)


def _build_read_tool(name: str, description: str, run: Any, schema: dict[str, Any]) -> BuiltinTool:
    return BuiltinTool(
        name=name,
        description=description,
        input_schema=schema,
        run=run,
        kit=KIT,
        labels=(FlowLabel.REPEATABLE,),
        reads=True,
    )


def _build_write_tool(name: str, description: str, run: Any, schema: dict[str, Any]) -> BuiltinTool:
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


GIT_TOOLS = (
    _build_read_tool(
        "git_status",
        format_message("Say what is changed, staged and new in a repository."),
        _show_status,
        _build_schema(),
    ),
    _build_read_tool(
        "git_diff",
        format_message("Show what differs: in the working tree, staged, or between two revisions."),
        _diff,
        _build_schema(
            paths=_PATHS, staged={"type": "boolean"}, **{"from": _REVISION, "to": _REVISION}
        ),
    ),
    _build_read_tool(
        "git_log",
        format_message("List commits, the newest first."),
        _log,
        _build_schema(
            revision=_REVISION,
            paths=_PATHS,
            most={"type": "integer", "minimum": 1, "maximum": MOST_COMMITS},
        ),
    ),
    _build_read_tool(
        "git_show",
        format_message(
            "Show a commit with its changes, or a file as it was (`HEAD~2:src/main.py`)."
        ),
        _show,
        _build_schema("revision", revision=_REVISION, paths=_PATHS),
    ),
    _build_write_tool(
        "git_add",
        format_message("Stage files for the next commit; without paths, everything that changed."),
        _add,
        _build_schema(paths=_PATHS),
    ),
    _build_write_tool(
        "git_commit",
        format_message(
            "Commit what is staged, in the agent's name. No hook runs and nothing is signed."
        ),
        _commit,
        _build_schema(
            "message",
            message={"type": "string", "minLength": 1, "maxLength": LONGEST_MESSAGE},
        ),
    ),
    _build_write_tool(
        "git_init",
        format_message("Make a repository in a folder of the workspace."),
        _init,
        _build_schema(),
    ),
)
