"""A repository in the workspace, as git is let near it: with a configuration of ours.

Whoever wrote a repository could have its configuration name programs (hooks, filters, text
conversions, a monitor, a pager, signing, transports), and git would run them. So of the
configuration only members that are known to be harmless are taken over, into a file of ours that
covers the repository's own in the sandbox; the rest stays out, also what a later git will know.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import re2

from agents.builtin_tools.commands import run
from agents.builtin_tools.sandbox import Box
from agents.builtin_tools.workspaces import INSIDE, Workspace
from bonobot.lib.paths import PathRefused
from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from mcp_servers.connections.limits import Limits

Words = Sequence[str]
Env = Mapping[str, str]

LARGEST_CONFIG = 256 * 1024
GIT_S = 60.0
SHOWN_OF_FAILED = 4000  # characters, the last ones
LIMITS = Limits(memory_mib=1024, processes=64, open_files=1024, cpu_s=int(GIT_S))
# Sections and names as `git config --list` writes them, in lower case.
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
# What holds over every file: nothing runs, nothing is fetched, nobody is asked.
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
    """git said no; the text is what it said."""

    code = "git_failed"
    status = 409
    title = "git failed"


def kept(config: bytes) -> str:
    """Return the file that takes over what is harmless of a repository's configuration.

    What this doesn't read as git would is left out, and can do no harm: git never sees the rest.
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
    """Return a repository's configuration as it stands; refuses what isn't a plain repository.

    `.git` must be a folder with a `config` of its own: a linked worktree or a submodule has its
    repository elsewhere, and would bring another configuration. Blocks.
    """
    base = f"{path}/.git" if path else ".git"
    with place.open() as folder:
        there = folder.look(base)
        if there is None:
            raise GitFailed(
                say("There is no repository at `{path}`.", path=path or "."),
                code="no_repository",
                field="path",
                remedy="Name the folder that holds `.git`, or make one with `git_init`.",
            )
        if there.kind != "folder" or folder.look(f"{base}/commondir"):
            raise PathRefused(
                say(
                    "`{path}` is a linked worktree or a submodule, or was made to look so.",
                    path=path or ".",
                ),
                code="not_a_repository",
                field="path",
                remedy="Work in the repository that it belongs to.",
            )
        return folder.read(f"{base}/config", LARGEST_CONFIG)


def has(place: Workspace, path: str) -> bool:
    """Tell whether something is there. Blocks."""
    with place.open() as folder:
        return folder.look(path) is not None


@contextmanager
def covering(config: bytes) -> Iterator[Path]:
    """Give a file of ours with what is harmless of a configuration, while a command runs."""
    with TemporaryDirectory(prefix="bonobot-git-") as folder:
        file = Path(folder, "config")
        file.write_text(kept(config), encoding="utf-8")
        yield file


async def git(place: Workspace, path: str, config: bytes, words: Words, env: Env) -> str:
    """Run git at the repository `path` and return what it wrote; raises `GitFailed`."""
    root = f"{INSIDE}/{path}" if path else INSIDE
    inner = f"{path}/.git/config".lstrip("/")
    # Said outright, so that nothing is looked for, and the repository can't say otherwise.
    where = {"GIT_DIR": f"{root}/.git", "GIT_WORK_TREE": root}
    with covering(config) as file:
        box = Box(root=place.root, at=path, limits=LIMITS, covers={inner: file})
        return await finished(place, box, words, {**where, **env})


async def finished(place: Workspace, box: Box, words: Words, env: Env) -> str:
    """Run git in a box and return what it wrote; raises `GitFailed` with it."""
    found = await run(place, box, ("git", *words), seconds=GIT_S, env={**ENVIRONMENT, **env})
    if found.ended or found.status:
        why = f"it was stopped ({found.ended})" if found.ended else f"status {found.status}"
        raise GitFailed(
            f"git did not do it, {why}.\n{found.out[-SHOWN_OF_FAILED:]}".strip(),
            remedy="Read what it says, and try otherwise.",
        )
    return found.out
