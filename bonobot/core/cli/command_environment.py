"""What commands need of packages above: who acts, and whether the installation is ready."""

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
    """Set what builds the principal of the command line in an organization, named by its slug."""
    _build_principal.register(build)


def register_readiness_check(find_problem: Callable[[], str]) -> None:
    """Set what returns why this installation isn't ready, blank when it is."""
    _find_problem.register(find_problem)


def build_command_principal(organization_slug: str | None) -> Any:
    """Return the principal in an organization, None for the only one; raises what it raises."""
    return _build_principal.get()(organization_slug)


def find_readiness_problem() -> str:
    """Return why this installation isn't ready, blank when it is."""
    return _find_problem.get()()
