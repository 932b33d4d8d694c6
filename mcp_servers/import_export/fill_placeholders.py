"""Fill `${VAR}` placeholders of an imported configuration.

A missing value becomes a parameter that a person fills in, and a problem until then. Bonobot's own
variables are refused.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text import placeholders
from bonobot.core.text.masking import MASK
from bonobot.core.text.secret_names import is_secret_name
from bonobot.core.text.untrusted_text import make_visible

# Label and password flag of VS Code's `inputs`, by ID.
InputLabels = Mapping[str, tuple[str, bool]]


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


class PlaceholderFiller:
    """Fills the placeholders of one server; collects missing values and problems."""

    def __init__(
        self, line: int, values: Mapping[str, str], labels: InputLabels, prefix: str
    ) -> None:
        """`prefix` starts the names of generated parameters."""
        self.line, self.problems = line, list[Problem]()
        self.parameters: dict[str, ImportParameter] = {}
        self._values, self._labels, self._prefix = values, labels, prefix

    def add_problem(self, code: str, detail: str, field: str, remedy: str, line: int = 0) -> None:
        extra = {"line": line or self.line}
        self.problems.append(
            InvalidInput(detail, code=code, field=field, remedy=remedy, extra=extra)
        )

    def fill_secret(self, text: str, field: str) -> str | None:
        """Return a secret with its references filled, or None if a value is missing."""
        if text in ("", MASK) or placeholders.is_example_value(text):
            # Empty, masked by an export, or copied from documentation: becomes a parameter.
            name = f"{self._prefix}_{field.rpartition('.')[2]}".upper().replace("-", "_")
            text = f"${{{name}}}"
        filled, is_complete = self._fill(text, field, secret=True)
        return filled if is_complete else None

    def fill_named_secret(self, name: str, field: str) -> str | None:
        """Return the secret with this name, else the one with its upper-case name."""
        is_upper = name not in self._values and name.upper() in self._values
        return self.fill_secret(f"${{{name.upper() if is_upper else name}}}", field)

    def fill_text(self, text: str, field: str) -> str:
        """Return a public string with its references filled as far as values exist."""
        return self._fill(text, field, secret=False)[0]

    def _fill(self, text: str, field: str, *, secret: bool) -> tuple[str, bool]:
        if unreadable := placeholders.find_unreadable_placeholder(text):
            detail = format_message(
                "`{name}` can't be resolved here.", name=make_visible(unreadable, 60)
            )
            self.add_problem("unknown_reference", detail, field, "Enter the value, or ${NAME}.")
            return text, False
        filled, missing = placeholders.fill_placeholders(text, self._values)
        for reference in missing:
            self._add_parameter(reference, field, secret)
        return filled, not missing

    def _add_parameter(self, reference: placeholders.Placeholder, field: str, secret: bool) -> None:
        name = reference.name
        if reference.is_forbidden:
            detail = format_message(
                "`{name}` is reserved for Bonobot and is never passed to a server.", name=name
            )
            self.add_problem("forbidden_variable", detail, field, "Choose another name.")
            return
        label, is_password = self._labels.get(name, ("", False))
        existing = self.parameters.get(name)
        self.parameters[name] = ImportParameter(
            name,
            label or name,
            is_password
            or secret
            or is_secret_name(name)
            or (existing is not None and existing.secret),
            (*(existing.fields if existing else ()), field),
        )
        detail = format_message("`{field}` needs a value for `{name}`.", field=field, name=name)
        self.add_problem(
            "missing_value",
            detail,
            field,
            format_message("Enter a value for {label}.", label=label or name),
        )
