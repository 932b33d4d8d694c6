"""Which programs may start a stdio server (docs/stdio-servers.md).

Choosing a program means running code on this host. So a command must be the bare name of a launcher
on the allowlist, or exactly an absolute path on it. Shells are never allowed, even if listed: their
arguments would be an unapproved program.
"""

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import PurePosixPath

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.audit.admin_changes import record_change
from mcp_servers.models import Launcher
from mcp_servers.unpinned_packages import find_unpinned_package

LAUNCHER_REMEDY = (
    "Specify a program on the search path, or an absolute path to one. Shells aren't allowed."
)

SHELLS = frozenset(
    (
        *("ash", "bash", "busybox", "cmd", "command", "csh", "dash", "elvish", "fish", "ksh"),
        *("mksh", "nu", "osascript", "powershell", "pwsh", "rbash", "sh", "tcsh", "wscript"),
        *("xonsh", "zsh"),
    )
)
_WINDOWS_ENDING = re.compile(r"(?i)\.(bat|cmd|com|exe|ps1)$")
_BARE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]*")

_INLINE_CODE = {
    "node": frozenset(("-e", "--eval", "-p", "--print")),
    "deno": frozenset(("eval",)),
    "bun": frozenset(("-e", "--eval")),
    "npx": frozenset(("-c", "--call")),
    "perl": frozenset(("-e", "-E")),
    "ruby": frozenset(("-e",)),
}
_PYTHON = re.compile(r"python[0-9.]*")


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


def create_launcher(principal: Principal, launcher: Launcher) -> None:
    """Allow a program to start stdio servers; raises `InvalidInput` for shells and the like."""
    try:
        check_launcher(launcher.command, allowed_launchers={launcher.command})
    except LauncherNotAllowed as refusal:
        raise InvalidInput(str(refusal), field="command", remedy=LAUNCHER_REMEDY) from None
    _write_launcher(principal, launcher, "launcher_created", launcher.save)


def delete_launcher(principal: Principal, launcher: Launcher) -> None:
    """Delete a launcher; servers that use it can no longer be started."""
    _write_launcher(principal, launcher, "launcher_deleted", launcher.delete)


def _write_launcher(
    principal: Principal, launcher: Launcher, action: str, write: Callable[[], object]
) -> None:
    principal.require(Action.MANAGE_LAUNCHERS)
    with record_change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="launcher",
        resource_id=str(launcher.pk),
        resource_name=make_visible(launcher.command),
    ):
        write()
