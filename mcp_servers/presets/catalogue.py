"""The catalogue that Bonobot ships: read from its file, checked against its own schema."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Protocol

from mcp_servers.configuration import ServerSpec
from mcp_servers.presets.filling import Fillable, complete
from mcp_servers.schemas import violation
from mcp_servers.secret_values import put_back

FOLDER = Path(__file__).parent
FILE = FOLDER / "catalogue.json"


@dataclass(frozen=True, kw_only=True)
class CatalogueEntry:
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
def load() -> tuple[CatalogueEntry, ...]:
    """Return the entries of the shipped catalogue; raises ValueError where the file is wrong."""
    return read(FILE.read_text(encoding="utf-8"))


@cache
def edition() -> str:
    """Return the digest of the shipped catalogue: rows that carry it are as the file says."""
    return sha256(FILE.read_bytes()).hexdigest()


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

    @property
    def confinement(self) -> str:
        """What its program must run in; blank where the installation's default decides."""

    @property
    def network(self) -> str:
        """What its program reaches from there; blank for what is usual."""


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
