"""Load the shipped catalog and localize its presets.

Rows store the catalog's English text and category codes. Texts of an organization's own presets are
not translated.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from django.utils.translation import gettext_lazy as _

from bonobot.core.i18n.localization import localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.process_cache import compute_once
from mcp_servers.import_export.entries import restore_secrets
from mcp_servers.models import Preset
from mcp_servers.presets.fill_parameters import PresetTemplate, fill_parameters
from mcp_servers.schemas import find_violation
from mcp_servers.server_config import ServerSpec

FOLDER = Path(__file__).parent
CATALOG_FILE = FOLDER / "catalog.json"
OTHER_CATEGORY = "other"
# Names of categories; unknown ones are shown as they are.
CATEGORY_NAMES = {
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
    "own": _("custom"),
    OTHER_CATEGORY: _("other"),
}


class InvalidCatalog(Problem):
    """The file of the catalog isn't valid."""

    code = "invalid_catalog"
    status = 500


@dataclass(frozen=True, kw_only=True)
class CatalogEntry:
    """A preset in the catalog file, with the columns of its row.

    `labels` are the flow labels of its tools (of all, or by tool), `program` is the executable that
    the package installs, `replaces` are nonexistent package names that it is an alternative for.
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
    sandbox: str = ""
    network: str = ""

    def to_columns(self) -> dict[str, Any]:
        """Return the values of the row's columns, without the slug."""
        columns = asdict(self) | {"replaces": list(self.replaces)}
        return {name: value for name, value in columns.items() if name != "slug"}


@compute_once
def load_catalog() -> tuple[CatalogEntry, ...]:
    """Return the entries of the shipped catalog; raises `InvalidCatalog`."""
    return parse_catalog(CATALOG_FILE.read_text(encoding="utf-8"))


@compute_once
def compute_catalog_digest() -> str:
    """Return the digest of the shipped catalog; up-to-date rows have it."""
    return sha256(CATALOG_FILE.read_bytes()).hexdigest()


def parse_catalog(text: str) -> tuple[CatalogEntry, ...]:
    """Return the entries of a catalog; raises `InvalidCatalog` with the first error."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidCatalog(
            format_message("The catalog isn't valid JSON: {error}", error=str(error))
        ) from error
    schema = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
    if (violation := find_violation(schema, document)) is not None:
        preset = re.match(r"\$\.presets\[(\d+)\]\.", violation.field)
        raise InvalidCatalog(
            format_message(
                "The catalog isn't valid at `{location}` (preset {slug!r}): {detail}",
                location=violation.field,
                slug=document["presets"][int(preset[1])].get("slug") if preset else "",
                detail=violation.detail,
            ),
            field=violation.field,
            remedy="Correct the entry in `mcp_servers/presets/catalog.json`.",
        )
    return tuple(
        CatalogEntry(**entry | {"replaces": tuple(entry.get("replaces", ()))})
        for entry in document["presets"]
    )


class PresetSource(PresetTemplate, Protocol):
    """A preset row or a catalog entry."""

    @property
    def slug(self) -> str:
        """The name in URLs, and the default name of the server."""

    @property
    def transport_type(self) -> str:
        """`stdio` or `http`."""

    @property
    def auth_type(self) -> str:
        """How Bonobot signs in."""

    @property
    def sandbox(self) -> str:
        """The sandbox of its program; blank for the installation's default."""

    @property
    def network(self) -> str:
        """The network access of its program; blank for the default."""


def fill_preset(
    preset: PresetSource, values: Mapping[str, str], *, name: str = "", **common: Any
) -> ServerSpec:
    """Return the server specification for a preset with `values` for its parameters.

    `common` are further fields of the specification. Raises `InvalidInput` (`missing_value`,
    `bad_value`, `unknown_parameter`) with the parameter as its field, and all errors in `errors`.
    """
    filled = fill_parameters(preset, values)
    if filled.problems:
        first_problem = filled.problems[0]
        first_problem.extra["errors"] = [problem.as_dict() for problem in filled.problems]
        raise first_problem
    endpoint, auth = restore_secrets(filled.endpoint_config, filled.auth_config, filled.secrets)
    # With a browser sign-in, no credential is needed; else an omitted one means no sign-in.
    is_interactive = auth.get("grant") == "authorization_code"
    has_sign_in = is_interactive or any(secret.placement == "auth" for secret in filled.secrets)
    return ServerSpec(
        name=name or preset.slug,
        transport_type=preset.transport_type,
        endpoint_config=endpoint,
        auth_config={"type": preset.auth_type, **auth} if has_sign_in else {"type": "none"},
        **{
            "sandbox": preset.sandbox or None,
            "network": preset.network or None,
            **common,
        },
    )


def localize_description(preset: Preset) -> str:
    return _localize_text(preset, preset.description)


def localize_parameters(preset: Preset) -> list[dict[str, Any]]:
    return [
        parameter
        | {
            name: _localize_text(preset, parameter[name])
            for name in ("label", "help")
            if name in parameter
        }
        for parameter in preset.parameters
    ]


def format_category(code: str) -> str:
    """Return the name of a category; `other` if it is blank."""
    return str(CATEGORY_NAMES.get(code or OTHER_CATEGORY, code))


def _localize_text(preset: Preset, text: str) -> str:
    return text if preset.organization_id else localize_text(text)
