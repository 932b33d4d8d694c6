"""Shipped catalog file and its translations.

Rows, files and programs hold the catalogue's English, and categories are codes. What an
organization wrote of its own presets stays as it is written.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from django.utils.translation import gettext_lazy as _

from bonobot.core.i18n.localization import localize_text
from mcp_servers.import_export.entries import put_back
from mcp_servers.models import Preset
from mcp_servers.presets.fill_parameters import PresetTemplate, complete
from mcp_servers.schemas import find_violation
from mcp_servers.server_config import ServerSpec

FOLDER = Path(__file__).parent
FILE = FOLDER / "catalogue.json"


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """A preset as the file has it, which is as the row has it.

    `labels` say what its tools do to a session (all of them, or by tool), `program` what the
    package installs, `replaces` which names that don't exist it stands in for.
    """

    slug: str
    name: str
    description: str
    category: str
    icon: str
    documentation_url: str
    transport_type: str
    endpoint_config: dict[str, Any]
    auth_type: str
    auth_config: dict[str, str]
    parameters: list[dict[str, Any]]
    labels: list[str] | dict[str, list[str]]
    proof: dict[str, str]
    program: str = ""
    replaces: tuple[str, ...] = ()
    confinement: str = ""
    network: str = ""

    def columns(self) -> dict[str, Any]:
        """Return what is written into a row, all but the slug that finds it."""
        found = asdict(self) | {"replaces": list(self.replaces)}
        return {name: value for name, value in found.items() if name != "slug"}


@cache
def load() -> tuple[CatalogEntry, ...]:
    """Return the entries of the shipped catalogue; raises ValueError where the file is wrong."""
    return read(FILE.read_text(encoding="utf-8"))


@cache
def compute_catalog_digest() -> str:
    """Return the digest of the shipped catalogue: rows that carry it are as the file says."""
    return sha256(FILE.read_bytes()).hexdigest()


def read(text: str) -> tuple[CatalogEntry, ...]:
    """Return the entries of a catalogue; raises ValueError naming the first thing wrong."""
    document = json.loads(text)
    schema = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
    if (found := find_violation(schema, document)) is not None:
        raise ValueError(f"The catalogue is wrong at `{found.field}`: {found.detail}")
    return tuple(
        CatalogEntry(**entry | {"replaces": tuple(entry.get("replaces", ()))})
        for entry in document["presets"]
    )


class PresetSource(PresetTemplate, Protocol):
    """A row or an entry of the catalogue."""

    @property
    def slug(self) -> str:
        """Its name in addresses, and the server's where nobody gives one."""

    @property
    def transport_type(self) -> str:
        """`stdio` or `http`."""

    @property
    def auth_type(self) -> str:
        """How we sign in."""

    @property
    def confinement(self) -> str:
        """What its program must run in; blank where the installation's default decides."""

    @property
    def network(self) -> str:
        """What its program reaches from there; blank for what is usual."""


def fill(
    preset: PresetSource, values: Mapping[str, str], *, name: str = "", **common: Any
) -> ServerSpec:
    """Return the server that `values` make of a preset (a row or an entry of the catalogue).

    `common` are further members of the specification. Raises `Invalid` (`missing_value`,
    `bad_value`, `unknown_parameter`) with the parameter as its field, all of them in `errors`.
    """
    filled = complete(preset, values)
    if filled.problems:
        first = filled.problems[0]
        first.extra["errors"] = [problem.as_dict() for problem in filled.problems]
        raise first
    endpoint, auth = put_back(filled.endpoint_config, filled.auth_config, filled.secrets)
    # A person who signs in brings what is needed; else a credential that was left out is none.
    interactive = auth.get("grant") == "authorization_code"
    signs_in = interactive or any(secret.placement == "auth" for secret in filled.secrets)
    return ServerSpec(
        name=name or preset.slug,
        transport_type=preset.transport_type,
        endpoint_config=endpoint,
        auth_config={"type": preset.auth_type, **auth} if signs_in else {"type": "none"},
        **{
            "confinement": preset.confinement or None,
            "network": preset.network or None,
            **common,
        },
    )


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


def localize_description(preset: Preset) -> str:
    """Return what a preset is."""
    return _localize_text(preset, preset.description)


def localize_parameters(preset: Preset) -> list[dict[str, Any]]:
    """Return what a person fills in, with label and help as its reader reads them."""
    return [
        one | {name: _localize_text(preset, one[name]) for name in ("label", "help") if name in one}
        for one in preset.parameters
    ]


def format_category(code: str) -> str:
    """Return what a category is called; none is `other`."""
    return str(CATEGORIES.get(code or OTHER, code))


def _localize_text(preset: Preset, text: str) -> str:
    return text if preset.organization_id else localize_text(text)
