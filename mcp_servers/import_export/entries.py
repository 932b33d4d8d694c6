"""Import entries with their parameters, secrets and problems."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, Problem
from bonobot.core.text.json_reader import SourceNode
from bonobot.core.text.masking import MASK, mask_value
from bonobot.core.text.secret_names import is_secret_name
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.import_export.fill_placeholders import (
    ImportParameter,
    InputLabels,
    PlaceholderFiller,
)

Placement = Literal["header", "env", "auth"]

# The field of `endpoint_config` for each placement.
SECRET_FIELDS: dict[Placement, str] = {"env": "env", "header": "headers"}


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A secret that is encrypted when it is stored: placement, name and value."""

    placement: Placement
    name: str
    value: str = field(repr=False)


def restore_secrets(
    endpoint_config: Mapping[str, Any],
    auth_config: Mapping[str, Any],
    secrets: Iterable[SecretValue],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both configurations with the secrets in their fields, as for `ServerSpec`."""
    endpoint, auth = dict(endpoint_config), dict(auth_config)
    for secret in secrets:
        if secret.placement == "auth":
            auth[secret.name] = secret.value
        else:
            endpoint.setdefault(SECRET_FIELDS[secret.placement], {})[secret.name] = secret.value
    return endpoint, auth


@dataclass(frozen=True, kw_only=True)
class ImportEntry:
    """One server of an import.

    `endpoint_config` and `auth_config` are public; `secrets` are values of headers, environment and
    sign-in. An entry with `problems` can't be created.
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
    allow_private: bool = False
    preset: str = ""
    env_exceptions: Mapping[str, str] = field(default_factory=dict)
    sampling_tokens: int | None = None
    parameters: tuple[ImportParameter, ...] = ()
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    notices: tuple[ConfigWarning, ...] = ()

    @property
    def is_valid(self) -> bool:
        """Tell whether the entry has no problems."""
        return not self.problems

    def build_configuration(self) -> dict[str, Any]:
        """Return the server as arguments for `ServerSpec`, including secrets."""
        public_auth = {"type": self.auth_type, **self.auth_config}
        endpoint, auth = restore_secrets(self.endpoint_config, public_auth, self.secrets)
        return {
            "name": self.name,
            "transport_type": self.transport_type,
            "endpoint_config": endpoint,
            "auth_config": auth,
            "enabled": self.enabled,
            **({"env_exceptions": self.env_exceptions} if self.env_exceptions else {}),
            **self._build_sampling(),
        }

    def _build_sampling(self) -> dict[str, Any]:
        """Return the sampling settings: a token budget means that a person is asked."""
        if self.sampling_tokens is None:
            return {}
        mode = "ask" if self.sampling_tokens else "off"
        return {"sampling": mode, "sampling_tokens": self.sampling_tokens}

    def build_preview(self) -> dict[str, Any]:
        """Return the preview: no secrets, all problems."""
        configuration = self.build_configuration()
        endpoint = mask_value(configuration["endpoint_config"])
        if "args" in endpoint:
            endpoint["args"] = _mask_arguments(endpoint["args"])
        for field_name in ("env", "headers"):
            if field_name in endpoint:
                endpoint[field_name] = dict.fromkeys(endpoint[field_name], MASK)
        configured = any(secret.placement == "auth" for secret in self.secrets)
        return {
            "name": self.name,
            "slug": self.slug,
            "line": self.line,
            "transport_type": self.transport_type,
            "endpoint_config": endpoint,
            "auth_config": {
                "type": self.auth_type,
                **mask_value(dict(self.auth_config)),
                "configured": configured,
            },
            "enabled": self.enabled,
            **self._build_sampling(),
            "parameters": [parameter.as_dict() for parameter in self.parameters],
            "problems": [problem.as_dict() for problem in self.problems],
            "notices": [notice.as_dict() for notice in self.notices],
        }


def _mask_arguments(args: list[str]) -> list[str]:
    """Return the arguments with values of secret-like options masked."""
    options = ["", *args]
    return [
        MASK if previous.startswith("-") and is_secret_name(previous.lstrip("-")) else arg
        for previous, arg in zip(options, args, strict=False)
    ]


class EntryCollector(PlaceholderFiller):
    """Collects problems, notices and parameters while a server is parsed."""

    def __init__(
        self, line: int, values: Mapping[str, str], labels: InputLabels, prefix: str
    ) -> None:
        """`prefix` starts the names of generated parameters."""
        super().__init__(line, values, labels, prefix)
        self.notices: list[ConfigWarning] = []

    def add_existing_problem(self, problem: Problem, field: str) -> None:
        problem.field = problem.field or field
        problem.extra.setdefault("line", self.line)
        self.problems.append(problem)

    def add_warning(self, code: str, detail: str, field: str = "") -> None:
        self.notices.append(ConfigWarning(code, detail, field))

    def read_text(self, node: SourceNode, field: str) -> str | None:
        """Return a scalar as a string; anything else is a problem."""
        if isinstance(node.value, str):
            return node.value
        if isinstance(node.value, bool | int | float):
            self.add_warning(
                "converted_value",
                format_message("`{field}` wasn't a string and was converted to one.", field=field),
                field,
            )
            return json.dumps(node.value)
        self.add_problem(
            "bad_value",
            format_message("`{field}` must be a string.", field=field),
            field,
            'Put it in "…".',
            node.line,
        )
        return None

    def read_pairs(self, node: SourceNode | None, field: str) -> list[tuple[str, str]]:
        """Return an object's fields as (name, text)."""
        if node is None or node.value is None:
            return []
        if not isinstance(node.value, dict):
            remedy = 'Enter an object, such as {"NAME": "value"}.'
            self.add_problem(
                "bad_value",
                format_message("`{field}` must be an object.", field=field),
                field,
                remedy,
                node.line,
            )
            return []
        pairs: dict[str, str] = {}
        for name, _, value in node.fields:
            if name in pairs:
                path = f"{field}.{make_visible(name, 64)}"
                self.add_warning(
                    "repeated_member",
                    format_message("`{path}` occurs twice. The last value is used.", path=path),
                    path,
                )
            if (text := self.read_text(value, f"{field}.{make_visible(name, 64)}")) is not None:
                pairs[name] = text
        return list(pairs.items())
