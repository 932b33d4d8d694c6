"""The catalogue that Bonobot ships: read from its file, checked against its own schema."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Protocol

from mcp_servers.configuration import ServerSpec
from mcp_servers.presets.filling import Fillable, complete
from mcp_servers.schemas import violation
from mcp_servers.secret_values import put_back

FOLDER = Path(__file__).parent


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
    """A preset as the file has it; the fields are those of the row, and three more.

    `labels` say what its tools do to a session, `program` what the package installs, `replaces`
    which names that don't exist it stands in for.
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
    labels: list[str]
    proof: dict[str, str]
    program: str = ""
    replaces: tuple[str, ...] = ()

    def columns(self) -> dict[str, Any]:
        """Return what is written into a row, all but the slug that finds it."""
        apart = ("slug", "labels", "program", "replaces")
        return {name: value for name, value in asdict(self).items() if name not in apart}


@cache
def load() -> tuple[CatalogueEntry, ...]:
    """Return the entries of the shipped catalogue; raises ValueError where the file is wrong."""
    return read((FOLDER / "catalogue.json").read_text(encoding="utf-8"))


def read(text: str) -> tuple[CatalogueEntry, ...]:
    """Return the entries of a catalogue; raises ValueError naming the first thing wrong."""
    document = json.loads(text)
    schema = json.loads((FOLDER / "schema.json").read_text(encoding="utf-8"))
    if (found := violation(schema, document)) is not None:
        raise ValueError(f"The catalogue is wrong at `{found.field}`: {found.detail}")
    return tuple(
        CatalogueEntry(**entry | {"replaces": tuple(entry.get("replaces", ()))})
        for entry in document["presets"]
    )


class Preset(Fillable, Protocol):
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


def fill(preset: Preset, values: Mapping[str, str], *, name: str = "", **common: Any) -> ServerSpec:
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
    signs_in = any(secret.placement == "auth" for secret in filled.secrets)
    return ServerSpec(
        name=name or preset.slug,
        transport_type=preset.transport_type,
        endpoint_config=endpoint,
        auth_config={"type": preset.auth_type, **auth} if signs_in else {"type": "none"},
        **common,
    )
