"""Tell presets to whoever reads them: the catalogue's texts in the reader's language.

Rows, files and programs hold the catalogue's English, and categories are codes. What an
organization wrote of its own presets stays as it is written.
"""

from typing import Any

from django.utils.translation import gettext_lazy as _

from bonobot.lib.translating import localized
from mcp_servers.models import Preset

OTHER = "other"
# What categories are called; one that an organization made up is its own word.
CATEGORIES = {
    "business": _("business"),
    "cloud": _("cloud"),
    "communication": _("communication"),
    "data": _("data"),
    "developer": _("development"),
    "files": _("files"),
    "knowledge": _("knowledge"),
    "productivity": _("productivity"),
    "reference": _("examples"),
    "web": _("web"),
    "own": _("own"),
    OTHER: _("other"),
}


def description(preset: Preset) -> str:
    """Return what a preset is."""
    return _told(preset, preset.description)


def parameters(preset: Preset) -> list[dict[str, Any]]:
    """Return what a person fills in, with label and help as its reader reads them."""
    return [
        one | {name: _told(preset, one[name]) for name in ("label", "help") if name in one}
        for one in preset.parameters
    ]


def category(code: str) -> str:
    """Return what a category is called; none is `other`."""
    return str(CATEGORIES.get(code or OTHER, code))


def _told(preset: Preset, text: str) -> str:
    return text if preset.organization_id else localized(text)
