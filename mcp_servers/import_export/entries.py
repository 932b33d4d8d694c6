"""Import entries with their parameters, secrets and problems."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import ConfigWarning, InvalidInput, Problem
from bonobot.core.text import placeholders
from bonobot.core.text.json_reader import SourceNode
from bonobot.core.text.masking import MASK, mask
from bonobot.core.text.secret_names import is_secret_name
from bonobot.core.text.untrusted_text import make_visible

Placement = Literal["header", "env", "auth"]

# The field of `endpoint_config` for each placement.
MEMBERS: dict[Placement, str] = {"env": "env", "header": "headers"}


@dataclass(frozen=True, slots=True)
class SecretValue:
    """A secret that is encrypted when it is stored: placement, name and value."""

    placement: Placement
    name: str
    value: str = field(repr=False)


def put_back(
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
            endpoint.setdefault(MEMBERS[secret.placement], {})[secret.name] = secret.value
    return endpoint, auth


@dataclass(frozen=True, slots=True)
class ImportParameter:
    """A value that a person has to fill in, once for all fields that use it."""

    name: str
    label: str
    secret: bool
    fields: tuple[str, ...]

    def as_dict(self) -> dict[str, Any]:
        """Return the form for REST and pages."""
        return asdict(self) | {"fields": list(self.fields)}


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
    parameters: tuple[ImportParameter, ...] = ()
    problems: tuple[Problem, ...] = field(default=(), repr=False)
    notices: tuple[ConfigWarning, ...] = ()

    @property
    def sound(self) -> bool:
        """Tell whether the entry has no problems."""
        return not self.problems

    def configuration(self) -> dict[str, Any]:
        """Return the server as arguments for `ServerSpec`, including secrets."""
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
        """Return the preview: no secrets, all problems."""
        whole = self.configuration()
        endpoint = mask(whole["endpoint_config"])
        if "args" in endpoint:
            endpoint["args"] = _mask_arguments(endpoint["args"])
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


def _mask_arguments(args: list[str]) -> list[str]:
    """Return the arguments with values of secret-like options masked."""
    options = ["", *args]
    return [
        MASK if before.startswith("-") and is_secret_name(before.lstrip("-")) else arg
        for before, arg in zip(options, args, strict=False)
    ]


# Label and password flag of VS Code's `inputs`, by ID.
Labels = Mapping[str, tuple[str, bool]]


class EntryCollector:
    """Collects problems, notices and parameters while a server is parsed."""

    def __init__(self, line: int, values: Mapping[str, str], labels: Labels, prefix: str) -> None:
        """`prefix` starts the names of generated parameters."""
        self.line, self.problems, self.notices = line, list[Problem](), list[ConfigWarning]()
        self.parameters: dict[str, ImportParameter] = {}
        self._values, self._labels, self._prefix = values, labels, prefix

    def refuse(self, code: str, detail: str, field: str, remedy: str, line: int = 0) -> None:
        """Add a problem."""
        extra = {"line": line or self.line}
        self.problems.append(
            InvalidInput(detail, code=code, field=field, remedy=remedy, extra=extra)
        )

    def add(self, problem: Problem, field: str) -> None:
        """Add a problem from another module."""
        problem.field = problem.field or field
        problem.extra.setdefault("line", self.line)
        self.problems.append(problem)

    def tell(self, code: str, detail: str, field: str = "") -> None:
        """Add a warning."""
        self.notices.append(ConfigWarning(code, detail, field))

    def text(self, node: SourceNode, field: str) -> str | None:
        """Return a scalar as a string; anything else is a problem."""
        if isinstance(node.value, str):
            return node.value
        if isinstance(node.value, bool | int | float):
            self.tell(
                "converted_value",
                format_message("`{field}` was no text and was made one.", field=field),
                field,
            )
            return json.dumps(node.value)
        self.refuse(
            "bad_value",
            format_message("`{field}` must be text.", field=field),
            field,
            'Write it in "…".',
            node.line,
        )
        return None

    def texts(self, node: SourceNode | None, field: str) -> list[tuple[str, str]]:
        """Return an object's fields as (name, text)."""
        if node is None or node.value is None:
            return []
        if not isinstance(node.value, dict):
            remedy = 'Write {"NAME": "value"}.'
            self.refuse(
                "bad_value",
                format_message("`{field}` must be an object.", field=field),
                field,
                remedy,
                node.line,
            )
            return []
        found: dict[str, str] = {}
        for name, _, value in node.members:
            if name in found:
                spot = f"{field}.{make_visible(name, 64)}"
                self.tell(
                    "repeated_member",
                    format_message("`{spot}` came twice; the last one counts.", spot=spot),
                    spot,
                )
            if (text := self.text(value, f"{field}.{make_visible(name, 64)}")) is not None:
                found[name] = text
        return list(found.items())

    def secret(self, text: str, field: str) -> str | None:
        """Return a secret with its references filled, or None if a value is missing."""
        if text in ("", MASK):
            # Empty, or masked by an export: becomes a parameter.
            name = f"{self._prefix}_{field.rpartition('.')[2]}".upper().replace("-", "_")
            text = f"${{{name}}}"
        filled, complete = self._fill(text, field, secret=True)
        return filled if complete else None

    def plain(self, text: str, field: str) -> str:
        """Return a public string with its references filled as far as values exist."""
        return self._fill(text, field, secret=False)[0]

    def _fill(self, text: str, field: str, *, secret: bool) -> tuple[str, bool]:
        if strange := placeholders.find_unreadable_placeholder(text):
            detail = format_message(
                "`{strange}` can't be filled here.", strange=make_visible(strange, 60)
            )
            self.refuse("unknown_reference", detail, field, "Write the value, or ${NAME}.")
            return text, False
        filled, missing = placeholders.fill(text, self._values)
        for reference in missing:
            self._ask(reference, field, secret)
        return filled, not missing

    def _ask(self, reference: placeholders.Placeholder, field: str, secret: bool) -> None:
        name = reference.name
        if reference.forbidden:
            detail = format_message(
                "`{name}` is Bonobot's own and never handed to a server.", name=name
            )
            self.refuse("forbidden_variable", detail, field, "Use another name.")
            return
        label, hidden = self._labels.get(name, ("", False))
        known = self.parameters.get(name)
        self.parameters[name] = ImportParameter(
            name,
            label or name,
            hidden or secret or is_secret_name(name) or (known is not None and known.secret),
            (*(known.fields if known else ()), field),
        )
        detail = format_message("`{field}` needs a value for `{name}`.", field=field, name=name)
        self.refuse(
            "missing_value", detail, field, format_message("Fill in {label}.", label=label or name)
        )
