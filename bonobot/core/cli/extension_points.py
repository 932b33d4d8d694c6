"""Extension points for commands: the acting principal and the readiness check."""

from collections.abc import Callable
from typing import Any

from bonobot.core.extension_points import ExtensionPoint

# Builds the command line's principal for an organization slug (None: the only organization).
command_principal: ExtensionPoint[Callable[[str | None], Any]] = ExtensionPoint(
    "principal of the command line", registered_by="tenancy"
)
# Returns why this installation isn't ready, blank if it is.
readiness_check: ExtensionPoint[Callable[[], str]] = ExtensionPoint(
    "readiness check", registered_by="bonobot"
)
