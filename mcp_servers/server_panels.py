"""Panels that other apps add to a server's page in the admin."""

from collections.abc import Callable, Iterator
from typing import Any

from bonobot.core.extension_points import ExtensionList

# A template and its context.
Panel = tuple[str, dict[str, Any]]
# Takes the request for a server's page (`ObjectRequest`), returns a panel or None.
PanelBuilder = Callable[[Any], Panel | None]
_panel_builders: ExtensionList[PanelBuilder] = ExtensionList()


def register_server_panel(build: PanelBuilder) -> None:
    """Add a panel after the existing ones."""
    _panel_builders.register(build)


def build_registered_panels(page: Any) -> Iterator[Panel]:
    for build in _panel_builders:
        if panel := build(page):
            yield panel
