"""Extension points for commands: the acting principal and the readiness check."""

from collections.abc import Callable
from typing import Any

from bonobot.core.extension_points import ExtensionPoint

_build_principal: ExtensionPoint[Callable[[str | None], Any]] = ExtensionPoint(
    "principal of the command line", registered_by="tenancy"
)
_find_problem: ExtensionPoint[Callable[[], str]] = ExtensionPoint(
    "readiness check", registered_by="bonobot"
)


def register_command_principal(build: Callable[[str | None], Any]) -> None:
    """Register the function that builds the command line's principal for an organization slug."""
    _build_principal.register(build)


def register_readiness_check(find_problem: Callable[[], str]) -> None:
    """Register the function that returns why this installation isn't ready, blank if it is."""
    _find_problem.register(find_problem)


def build_command_principal(organization_slug: str | None) -> Any:
    """Return the command line's principal in an organization, None for the only one."""
    return _build_principal.get()(organization_slug)


def find_readiness_problem() -> str:
    """Return why this installation isn't ready, blank if it is."""
    return _find_problem.get()()
