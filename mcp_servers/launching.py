"""Add launchers to the allow-list and remove them: audited, for platform administrators alone."""

from collections.abc import Callable

from bonobot.ledger.changes import change
from bonobot.lib.problems import Invalid
from bonobot.lib.untrusted import visible
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.launchers import LauncherNotAllowed, check_launcher
from mcp_servers.models import Launcher

NAME_ONE = "Name a program on the path, or an absolute path to one; never a shell."


def add_launcher(principal: Principal, launcher: Launcher) -> None:
    """Let stdio servers be started with this program; raises `Invalid` for one that never may."""
    try:
        check_launcher(launcher.command, allowed={launcher.command})
    except LauncherNotAllowed as refusal:
        raise Invalid(str(refusal), field="command", remedy=NAME_ONE) from None
    _write(principal, launcher, "launcher_added", launcher.save)


def remove_launcher(principal: Principal, launcher: Launcher) -> None:
    """Take a program off the list; servers that use it can't be started any more."""
    _write(principal, launcher, "launcher_removed", launcher.delete)


def _write(
    principal: Principal, launcher: Launcher, action: str, write: Callable[[], object]
) -> None:
    principal.require(Action.MANAGE_LAUNCHERS)
    with change(
        organization_id=principal.organization_id,
        actor=principal.actor,
        action=action,
        resource_type="launcher",
        resource_id=str(launcher.pk),
        resource_name=visible(launcher.command),
    ):
        write()
