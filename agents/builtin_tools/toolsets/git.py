"""The git toolset, and the filter for a repository's configuration.

git runs in the sandbox without network access.

The configuration of an untrusted repository can name programs that git runs: hooks, filters, text
conversions, a monitor, a pager, signing, transports. So only keys known to be safe are copied to a
new file, which is mounted over the repository's own in the sandbox.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import re2

from agents.builtin_tools.command_sandbox import CommandSandbox, run_command
from agents.builtin_tools.toolsets.filesystem import (
    FOLDER_PATH_SCHEMA,
    PATH_SCHEMA,
    get_workspace,
    normalize_path,
    resolve_writable_path,
)
from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, BuiltinToolHints
from agents.builtin_tools.workspaces import SANDBOX_PATH, Workspace, run_in_thread
from bonobot.core.confined_folder import PathRefused
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, Problem
from mcp_servers.client.resource_limits import ProcessLimits
from mcp_servers.flow_labels import FlowLabel

GitArguments = Sequence[str]
Environment = Mapping[str, str]

MAX_CONFIG_BYTES = 256 * 1024
GIT_TIMEOUT_S = 60.0
MAX_ERROR_LENGTH = 4000  # characters, the last ones
LIMITS = ProcessLimits(memory_mib=1024, processes=64, open_files=1024, cpu_s=int(GIT_TIMEOUT_S))
# Keys as `git config --list` writes them, in lower case.
SAFE_KEYS = re2.compile(
    r"core\.(?:repositoryformatversion|bare|filemode|symlinks|ignorecase|precomposeunicode|eol|"
    r"autocrlf|safecrlf|quotepath|abbrev|logallrefupdates|compression|bigfilethreshold)"
    r"|extensions\.(?:objectformat|compatobjectformat|refstorage)"
    r"|user\.(?:name|email)|i18n\.[a-z]+|init\.defaultbranch"
    r"|branch\..+\.(?:remote|merge)|remote\..+\.fetch"
)
SECTION_LINE = re2.compile(r'\[([A-Za-z0-9-]+)(?:\s+"([^"\\]*)")?\]')
KEY_LINE = re2.compile(r"([A-Za-z][A-Za-z0-9-]*)\s*=\s*(.*)")
UNSAFE_CHARACTERS = re2.compile(r'["\\\x00-\x1f]')
# Overrides every configuration file: no hooks, no network, no prompts.
ENFORCED_CONFIG = {
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
    **{f"GIT_CONFIG_KEY_{n}": name for n, name in enumerate(ENFORCED_CONFIG)},
    **{f"GIT_CONFIG_VALUE_{n}": value for n, value in enumerate(ENFORCED_CONFIG.values())},
    "GIT_CONFIG_COUNT": str(len(ENFORCED_CONFIG)),
}
TOOLSET_NAME = "git"
MAX_PATHS = 200
MAX_COMMITS = 200
MAX_MESSAGE_LENGTH = 20_000
# Excludes options and unusual revision syntax.
REVISION_PATTERN = r"^[A-Za-z0-9_@][A-Za-z0-9_./~^@{}:+=-]{0,255}$"
PLAIN_OUTPUT = ("--no-ext-diff", "--no-textconv", "--no-color")
LOG_FORMAT = "--format=%H%n%an <%ae>, %aI%n    %s%n"
_REVISION_SCHEMA = {"type": "string", "pattern": REVISION_PATTERN}
_PATHS_SCHEMA = {
    "type": "array",
    "items": PATH_SCHEMA,
    "maxItems": MAX_PATHS,
    "description": "In the repository.",
}
_WRITE_HINTS = BuiltinToolHints(read_only=False, destructive=False, idempotent=False)


class GitFailed(Problem):
    """git failed; the message contains its output."""

    code = "git_failed"
    status = 409
    title = "Git failed"


def filter_config(config: bytes) -> str:
    """Return a configuration file with only the safe keys of a repository's configuration.

    Lines that this parses differently from git are left out, so git never sees them.
    """
    lines = ["[core]\n\trepositoryformatversion = 0\n"]
    section = subsection = ""
    for line in config.decode("utf-8", "replace").splitlines():
        if header := SECTION_LINE.fullmatch(line.strip()):
            section, subsection = header.group(1).lower(), header.group(2) or ""
            continue
        if not (key_line := KEY_LINE.fullmatch(line.strip())):
            continue
        name, value = key_line.group(1).lower(), key_line.group(2).strip()
        value = value[1:-1] if len(value) > 1 and value[0] == value[-1] == '"' else value
        key = ".".join(part for part in (section, subsection, name) if part)
        if SAFE_KEYS.fullmatch(key) and not UNSAFE_CHARACTERS.search(value + subsection):
            full_section = f'{section} "{subsection}"' if subsection else section
            lines.append(f'[{full_section}]\n\t{name} = "{value}"\n')
    return "".join(lines)


def read_config(workspace: Workspace, path: str) -> bytes:
    """Return a repository's unfiltered configuration; raises `GitFailed` or `PathRefused`.

    `.git` must be a folder with its own `config`: a linked worktree or a submodule has its
    repository, and so another configuration, elsewhere. Blocks.
    """
    git_folder = f"{path}/.git" if path else ".git"
    with workspace.open() as folder:
        entry = folder.find_entry(git_folder)
        if entry is None:
            raise GitFailed(
                format_message("The repository `{path}` doesn't exist.", path=path or "."),
                code="no_repository",
                field="path",
                remedy="Use the folder that contains `.git`, or create a repository with "
                "`git_init`.",
            )
        if entry.kind != "folder" or folder.find_entry(f"{git_folder}/commondir"):
            raise PathRefused(
                format_message(
                    "`{path}` is, or appears to be, a linked worktree or a submodule.",
                    path=path or ".",
                ),
                code="not_a_repository",
                field="path",
                remedy="Use the repository it belongs to.",
            )
        return folder.read(f"{git_folder}/config", MAX_CONFIG_BYTES)


def has_path(workspace: Workspace, path: str) -> bool:
    """Return whether a path exists in the workspace. Blocks."""
    with workspace.open() as folder:
        return folder.find_entry(path) is not None


@contextmanager
def open_safe_config(config: bytes) -> Iterator[Path]:
    """Yield a temporary file with the safe part of a configuration."""
    with TemporaryDirectory(prefix="bonobot-git-") as folder:
        config_file = Path(folder, "config")
        config_file.write_text(filter_config(config), encoding="utf-8")
        yield config_file


async def run_git(
    workspace: Workspace, path: str, config: bytes, arguments: GitArguments, env: Environment
) -> str:
    """Run git in the repository at `path` and return its output; raises `GitFailed`."""
    root = f"{SANDBOX_PATH}/{path}" if path else SANDBOX_PATH
    config_path = f"{path}/.git/config".lstrip("/")
    # Set explicitly: git searches for nothing, and the repository can't override it.
    location = {"GIT_DIR": f"{root}/.git", "GIT_WORK_TREE": root}
    with open_safe_config(config) as config_file:
        sandbox = CommandSandbox(
            root=workspace.root,
            start_folder=path,
            limits=LIMITS,
            read_only_files={config_path: config_file},
        )
        return await run_sandboxed_git(workspace, sandbox, arguments, {**location, **env})


async def run_sandboxed_git(
    workspace: Workspace, sandbox: CommandSandbox, arguments: GitArguments, env: Environment
) -> str:
    """Run git in a sandbox and return its output; raises `GitFailed`."""
    result = await run_command(
        workspace, sandbox, ("git", *arguments), timeout_s=GIT_TIMEOUT_S, env={**ENVIRONMENT, **env}
    )
    if result.ended_by or result.exit_status:
        reason = (
            f"it was stopped ({result.ended_by})"
            if result.ended_by
            else f"status {result.exit_status}"
        )
        raise GitFailed(
            f"git failed: {reason}.\n{result.output[-MAX_ERROR_LENGTH:]}".strip(),
            remedy="Read the output, then change the call.",
        )
    return result.output


async def _run_in_repository(
    context: BuiltinToolContext,
    arguments: dict[str, Any],
    *git_arguments: str,
    changes: bool = False,
) -> str:
    workspace, path = get_workspace(context), normalize_path(arguments.get("repository", "."))
    config = await run_in_thread(_read_repository_config, workspace, path, changes=changes)
    return await run_git(workspace, path, config, git_arguments, _build_identity(context))


def _read_repository_config(workspace: Workspace, path: str, *, changes: bool) -> bytes:
    if changes:
        with workspace.open() as folder:
            workspace.require_room(folder, 1)
    return read_config(workspace, path)


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


async def _handle_status(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    git_arguments = (
        "status",
        "--short",
        "--branch",
        "--ignore-submodules=all",
        "--untracked-files=normal",
    )
    return await _run_in_repository(context, arguments, *git_arguments)


async def _handle_diff(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    revisions = [arguments[name] for name in ("from", "to") if name in arguments]
    staged_flags = ("--cached",) if arguments.get("staged") else ()
    git_arguments = (
        "diff",
        *PLAIN_OUTPUT,
        "--ignore-submodules=all",
        *staged_flags,
        "--end-of-options",
        *revisions,
    )
    diff = await _run_in_repository(
        context, arguments, *git_arguments, *_build_path_arguments(arguments)
    )
    return diff or "There is no difference."


async def _handle_log(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    max_count = str(arguments.get("most", 20))
    start = (arguments["revision"],) if "revision" in arguments else ()
    git_arguments = (
        "log",
        LOG_FORMAT,
        "--no-show-signature",
        "--no-color",
        f"--max-count={max_count}",
    )
    return await _run_in_repository(
        context,
        arguments,
        *git_arguments,
        "--end-of-options",
        *start,
        *_build_path_arguments(arguments),
    )


async def _handle_show(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    git_arguments = (
        "show",
        *PLAIN_OUTPUT,
        "--no-show-signature",
        "--ignore-submodules=all",
        "--end-of-options",
    )
    return await _run_in_repository(
        context, arguments, *git_arguments, arguments["revision"], *_build_path_arguments(arguments)
    )


async def _handle_add(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    path_arguments = _build_path_arguments(arguments) if arguments.get("paths") else ("--all",)
    await _run_in_repository(context, arguments, "add", *path_arguments, changes=True)
    return await _handle_status(context, arguments)


async def _handle_commit(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    git_arguments = ("commit", "--no-verify", "--no-gpg-sign", "--no-edit", "--cleanup=verbatim")
    message = f"--message={arguments['message']}"
    return await _run_in_repository(context, arguments, *git_arguments, message, changes=True)


async def _handle_init(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    workspace, path = (
        get_workspace(context),
        resolve_writable_path(arguments.get("repository", ".")),
    )
    await run_in_thread(_create_repository_folder, workspace, path)
    sandbox = CommandSandbox(root=workspace.root, start_folder=path, limits=LIMITS)
    git_arguments = ("init", "--template=", "--initial-branch=main", "--quiet", ".")
    await run_sandboxed_git(workspace, sandbox, git_arguments, {})
    return f"Created an empty repository at {path or '.'}, on the branch main."


def _create_repository_folder(workspace: Workspace, path: str) -> None:
    if has_path(workspace, f"{path}/.git" if path else ".git"):
        raise Conflict(
            format_message("The repository `{path}` already exists.", path=path or "."),
            code="already_exists",
            field="repository",
            remedy="Use that repository, or choose another folder.",
        )
    with workspace.open() as folder, workspace.lock(folder):
        workspace.require_room(folder, 1)
        folder.create_folder(path)


def _build_schema(*required: str, **properties: dict[str, Any]) -> dict[str, Any]:
    repository = FOLDER_PATH_SCHEMA | {
        "description": "The folder that contains `.git`. Default: the workspace."
    }
    return {
        "type": "object",
        "properties": {"repository": repository, **properties},
        "required": list(required),
        "additionalProperties": False,
    }


def _build_read_tool(name: str, description: str, run: Any, schema: dict[str, Any]) -> BuiltinTool:
    return BuiltinTool(
        name=name,
        description=description,
        input_schema=schema,
        run=run,
        toolset=TOOLSET_NAME,
        labels=(FlowLabel.REPEATABLE,),
        reads_workspace=True,
    )


def _build_write_tool(name: str, description: str, run: Any, schema: dict[str, Any]) -> BuiltinTool:
    return BuiltinTool(
        name=name,
        description=description,
        input_schema=schema,
        run=run,
        toolset=TOOLSET_NAME,
        reads_workspace=True,
        writes_workspace=True,
        hints=_WRITE_HINTS,
    )


GIT_TOOLS = (
    _build_read_tool(
        "git_status",
        format_message("Show what is changed, staged, and new in a repository."),
        _handle_status,
        _build_schema(),
    ),
    _build_read_tool(
        "git_diff",
        format_message(
            "Show differences in the working tree, in staged changes, or between two revisions."
        ),
        _handle_diff,
        _build_schema(
            paths=_PATHS_SCHEMA,
            staged={"type": "boolean"},
            **{"from": _REVISION_SCHEMA, "to": _REVISION_SCHEMA},
        ),
    ),
    _build_read_tool(
        "git_log",
        format_message("List commits, newest first."),
        _handle_log,
        _build_schema(
            revision=_REVISION_SCHEMA,
            paths=_PATHS_SCHEMA,
            most={"type": "integer", "minimum": 1, "maximum": MAX_COMMITS},
        ),
    ),
    _build_read_tool(
        "git_show",
        format_message(
            "Show a commit with its changes, or a file at a revision (`HEAD~2:src/main.py`)."
        ),
        _handle_show,
        _build_schema("revision", revision=_REVISION_SCHEMA, paths=_PATHS_SCHEMA),
    ),
    _build_write_tool(
        "git_add",
        format_message(
            "Stage files for the next commit. Without paths, stage everything that changed."
        ),
        _handle_add,
        _build_schema(paths=_PATHS_SCHEMA),
    ),
    _build_write_tool(
        "git_commit",
        format_message(
            "Commit what is staged, as the agent. Hooks don't run and the commit isn't signed."
        ),
        _handle_commit,
        _build_schema(
            "message",
            message={"type": "string", "minLength": 1, "maxLength": MAX_MESSAGE_LENGTH},
        ),
    ),
    _build_write_tool(
        "git_init",
        format_message("Create a repository in a folder of the workspace."),
        _handle_init,
        _build_schema(),
    ),
)
