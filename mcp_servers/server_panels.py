"""Panels that packages above add to the overview of a server in the admin."""

from collections.abc import Callable, Iterator
from typing import Any

from bonobot.core.extension_points import ExtensionList

# A template and its context.
Panel = tuple[str, dict[str, Any]]
# From the request for a server's page (`ObjectRequest`) to a panel; None where there is none.
PanelBuilder = Callable[[Any], Panel | None]
_panel_builders: ExtensionList[PanelBuilder] = ExtensionList()


def register_server_panel(build: PanelBuilder) -> None:
    """Add a panel below those that there are."""
    _panel_builders.register(build)


def build_registered_panels(visit: Any) -> Iterator[Panel]:
    """Yield the panels that packages above have for a server."""
    for build in _panel_builders:
        if panel := build(visit):
            yield panel
