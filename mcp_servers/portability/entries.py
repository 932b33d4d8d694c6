"""Entry: one server of an import, its secrets apart, with everything that is wrong with it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bonobot.lib.masking import MASK, mask
from bonobot.lib.problems import Problem
from bonobot.lib.secret_names import names_secret
from mcp_servers.notices import Notice
from mcp_servers.secret_values import SecretValue, put_back


@dataclass(frozen=True, slots=True)
class Parameter:
    """A value that the import leaves to a person: asked for once, used wherever it is named."""

    name: str
    label: str
    secret: bool
    fields: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return what a form shows."""
        return asdict(self) | {"fields": list(self.fields)}


@dataclass(frozen=True, kw_only=True)
class Entry:
    """What an import says about one server.

    `endpoint_config` and `auth_config` hold what may be read; `secrets` hold values of headers,
    environment and sign-in. With `problems` it can't be added as it stands.
    """

    name: str
    slug: str
    line: int
    transport_type: Literal["stdio", "http", "openapi", ""] = ""
    endpoint_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    auth_type: str = "none"
    auth_config: Mapping[str, Any] = field(default_factory=dict, repr=False)
    secrets: tuple[SecretValue, ...] = ()
    enabled: bool = True
    parameters: tuple[Parameter, ...] = ()
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    notices: tuple[Notice, ...] = ()

    @property
    def sound(self) -> bool:
        """Tell whether nothing stands against adding it."""
        return not self.problems

    def configuration(self) -> dict[str, Any]:
        """Return the server as the registry takes it (`ServerSpec(**…)`), secrets included."""
        public_auth = {"type": self.auth_type, **self.auth_config}
        endpoint, auth = put_back(self.endpoint_config, public_auth, self.secrets)
        return {
            "name": self.name,
            "transport_type": self.transport_type,
            "endpoint_config": endpoint,
            "auth_config": auth,
            "enabled": self.enabled,
        }

    def preview(self) -> dict[str, Any]:
        """Return what is shown before anything is added: no secret, every problem."""
        whole = self.configuration()
        endpoint = mask(whole["endpoint_config"])
        if "args" in endpoint:
            endpoint["args"] = _shown(endpoint["args"])
        for member in ("env", "headers"):
            if member in endpoint:
                endpoint[member] = dict.fromkeys(endpoint[member], MASK)
        configured = any(secret.placement == "auth" for secret in self.secrets)
        return {
            "name": self.name,
            "slug": self.slug,
            "line": self.line,
            "transport_type": self.transport_type,
            "endpoint_config": endpoint,
            "auth_config": {
                "type": self.auth_type,
                **mask(dict(self.auth_config)),
                "configured": configured,
            },
            "enabled": self.enabled,
            "parameters": [parameter.as_dict() for parameter in self.parameters],
            "problems": [problem.as_dict() for problem in self.problems],
            "notices": [notice.as_dict() for notice in self.notices],
        }


def _shown(args: list[str]) -> list[str]:
    """Return arguments without the values of options that are called like a secret."""
    options = ["", *args]
    return [
        MASK if before.startswith("-") and names_secret(before.lstrip("-")) else arg
        for before, arg in zip(options, args, strict=False)
    ]
