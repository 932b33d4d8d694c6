"""Which programs may start a stdio server (docs/stdio-servers.md; pure).

Choosing a program means running code on this host. So a command must be the bare name of a launcher
on the allowlist, or exactly an absolute path on it. Shells are never allowed, even if listed: their
arguments would be an unapproved program.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from pathlib import PurePosixPath

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, Problem
from bonobot.core.text.untrusted_text import make_visible

SHELLS = frozenset(
    (
        *("ash", "bash", "busybox", "cmd", "command", "csh", "dash", "elvish", "fish", "ksh"),
        *("mksh", "nu", "osascript", "powershell", "pwsh", "rbash", "sh", "tcsh", "wscript"),
        *("xonsh", "zsh"),
    )
)
_WINDOWS_ENDING = re.compile(r"(?i)\.(bat|cmd|com|exe|ps1)$")
_BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

# The subcommands that make each of these run a package.
_RUNNERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "npx": ((),),
    "bunx": ((),),
    "uvx": ((),),
    "uv": (("tool", "run"),),
    "pipx": (("run",),),
    "pnpm": (("dlx",),),
    "yarn": (("dlx",),),
    "npm": (("exec",), ("x",)),
}
_PACKAGE_OPTIONS = frozenset(("-p", "--package", "--from", "--spec"))
_VALUE_OPTIONS = _PACKAGE_OPTIONS | {
    "-c",
    "--call",
    "-w",
    "--with",
    "--python",
    "--registry",
    "--index-url",
}
_INLINE_CODE = {
    "node": frozenset(("-e", "--eval", "-p", "--print")),
    "deno": frozenset(("eval",)),
    "bun": frozenset(("-e", "--eval")),
    "npx": frozenset(("-c", "--call")),
    "perl": frozenset(("-e", "-E")),
    "ruby": frozenset(("-e",)),
}
_PYTHON = re.compile(r"python[0-9.]*")
_NPM_VERSION = re.compile(r"v?\d+\.\d+\.\d+([-+][0-9A-Za-z.+-]+)?")
_PYPI_PINNED = re.compile(r"[A-Za-z0-9._-]+(\[[A-Za-z0-9,._-]*\])?(==|@)v?\d[0-9A-Za-z.!+_-]*")
_COMMIT = re.compile(r"[@#][0-9a-f]{40}\b")
# Options of `docker run` that take a value in the next argument.
_DOCKER_VALUE_OPTIONS = frozenset(
    (
        *("-e", "--env", "-v", "--volume", "-p", "--publish", "-u", "--user", "-w", "--workdir"),
        *("-m", "--memory", "--name", "--network", "--net", "--mount", "--env-file", "-l"),
        *("--label", "--entrypoint", "--cpus", "--add-host", "--cap-drop", "--cap-add", "-h"),
        *("--hostname", "--security-opt", "--platform", "--tmpfs", "--ulimit", "--pids-limit"),
        *("--gpus", "--device", "--pull"),
    )
)


class LauncherNotAllowed(Problem):
    """A command that may not start a stdio server."""

    code = "launcher_not_allowed"
    status = 403
    title = "Command not allowed"


def check_launcher(
    command: str, args: Sequence[str] = (), *, allowed_launchers: Collection[str]
) -> tuple[ConfigWarning, ...]:
    """Return warnings about a command that may be started.

    `allowed_launchers` contains bare names and absolute paths. Raises `LauncherNotAllowed`
    (`launcher_not_allowed`) for every other command.
    """
    if reason := _explain_refusal(command, allowed_launchers):
        # Absolute paths are those of this machine, which don't help to fill in a form.
        bare_names = sorted(
            name for name in allowed_launchers if name not in SHELLS and "/" not in name
        )
        shown_names = ", ".join(f"`{name}`" for name in bare_names[:20]) or "none"
        raise LauncherNotAllowed(
            format_message(
                "`{command}` can't start a server: {reason}.",
                command=make_visible(command, 100),
                reason=reason,
            ),
            field="endpoint_config.command",
            rule="launchers",
            remedy=format_message(
                "Use a launcher from the allowlist ({listed}) with separate arguments, or "
                "ask a platform administrator to add one.",
                listed=shown_names,
            ),
        )
    return tuple(_list_warnings(command, [str(arg) for arg in args]))


def find_unpinned_package(command: str, args: Sequence[str]) -> str:
    """Return the package or image without a pinned version, or ""."""
    name = PurePosixPath(command).name
    if name in ("docker", "podman", "nerdctl"):
        image = _find_image(args)
        return image if image and not _is_image_pinned(image) else ""
    package = _find_package(name, args)
    if not package or package.startswith((".", "/", "~")):
        return ""
    return "" if _is_package_pinned(package, npm=name not in ("uvx", "uv", "pipx")) else package


def _explain_refusal(command: str, allowed_launchers: Collection[str]) -> str:
    """Return why the command is refused, or ""."""
    name = _WINDOWS_ENDING.sub("", re.split(r"[/\\]", command)[-1]).lower()
    if not command:
        return format_message("it is empty")
    if name in SHELLS:
        return format_message("shells aren't allowed")
    if "\\" in command or _WINDOWS_ENDING.search(command):
        return format_message("it is a Windows command")
    if "/" in command:
        if not command.startswith("/"):
            return format_message("a path must be absolute")
        if str(PurePosixPath(command)) != command or ".." in command.split("/"):
            return format_message("a path must be normalized")
        return (
            ""
            if command in allowed_launchers
            else format_message("the path isn't on the allowlist")
        )
    if any(character.isspace() for character in command):
        return format_message("the command and its arguments must be separate")
    if not _BARE_NAME.fullmatch(command):
        return format_message("it isn't the name of a program")
    return "" if command in allowed_launchers else format_message("it isn't on the allowlist")


def _list_warnings(command: str, args: list[str]) -> Iterator[ConfigWarning]:
    if find_unpinned_package(command, args):
        # The package is not shown: the argument may actually be a secret.
        yield ConfigWarning(
            "unpinned_version",
            format_message(
                "`{command}` uses the newest version at each start. Specify a version.",
                command=command,
            ),
            "endpoint_config.args",
        )
    name = PurePosixPath(command).name
    flags = frozenset(("-c",)) if _PYTHON.fullmatch(name) else _INLINE_CODE.get(name, frozenset())
    # Arguments after the first plain word belong to the started program.
    first_word = next((i for i, arg in enumerate(args) if not arg.startswith("-")), len(args))
    if flags.intersection(args[: first_word + 1]):
        yield ConfigWarning(
            "inline_code",
            "The arguments contain program code. Read it before you trust it.",
            "endpoint_config.args",
        )


def _find_package(runner: str, args: Sequence[str]) -> str:
    """Return the package that a runner's arguments name, or ""."""
    for subcommands in _RUNNERS.get(runner, ()):
        if tuple(args[: len(subcommands)]) == subcommands:
            return _parse_package_argument(list(args[len(subcommands) :]))
    return ""


def _parse_package_argument(args: list[str]) -> str:
    remaining = iter(args)
    for arg in remaining:
        option, equals, value = arg.partition("=")
        if option in _PACKAGE_OPTIONS:
            return value if equals else next(remaining, "")
        if arg == "--":
            return next(remaining, "")
        if arg in _VALUE_OPTIONS:
            next(remaining, "")
        elif not arg.startswith("-"):
            return arg
    return ""


def _is_package_pinned(package: str, *, npm: bool) -> bool:
    if _COMMIT.search(package):
        return True
    if npm:
        _, at, version = package.rpartition("@")
        return bool(at) and _NPM_VERSION.fullmatch(version) is not None
    return _PYPI_PINNED.fullmatch(package) is not None


def _find_image(args: Sequence[str]) -> str:
    """Return the image of `docker run …`, or ""."""
    if not args or args[0] != "run":
        return ""
    remaining = iter(args[1:])
    for arg in remaining:
        if arg in _DOCKER_VALUE_OPTIONS:
            next(remaining, "")
        elif not arg.startswith("-"):
            return arg
    return ""


def _is_image_pinned(image: str) -> bool:
    if "@sha256:" in image:
        return True
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag not in ("", "latest")
