"""The rows of an import's preview: one for each server, with its state and what is missing."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from agents.server_imports import ServerImport
from bonobot.core.problems import Problem
from mcp_servers.import_export.entries import ImportParameter
from mcp_servers.import_export.import_plan import PlannedServer
from mcp_servers.import_export.parse_servers import parse_import
from mcp_servers.models import Server

# State, its words, icon and tone, in the order of the filter.
STATES = (
    ("ready", _("Ready"), "check_circle", "good"),
    ("credential", _("Credential"), "lock", "warn"),
    ("permission", _("Permission"), "gpp_maybe", "warn"),
    ("refused", _("Not allowed"), "block", "trust"),
)


@dataclass(frozen=True)
class ImportField:
    """A value to fill in a row; `elsewhere` names the row that has its input already."""

    parameter: ImportParameter
    value: str
    elsewhere: str = ""


@dataclass(frozen=True)
class ImportRow:
    """A server of the text: `problems` are those that a permission or a value wouldn't solve."""

    planned: PlannedServer
    shown: Any
    problems: tuple[Problem, ...]
    fields: tuple[ImportField, ...]
    kept_tools: tuple[str, ...]
    sign_in: Any

    @property
    def state(self) -> str:
        """Return `ready`, `credential`, `permission` or `refused`."""
        if self.problems:
            return "refused"
        if any(not field.value for field in self.fields):
            return "credential"
        return "permission" if self.planned.private else "ready"

    @property
    def words(self) -> tuple[Any, str, str]:
        """Return the word, icon and tone of its state."""
        return next(words for state, *words in STATES if state == self.state)  # type: ignore[return-value]

    @property
    def target(self) -> str:
        """Return what it connects to: a URL or a command."""
        config = self.planned.entry.endpoint_config
        if url := config.get("url"):
            return str(url)
        return " ".join(map(str, (config.get("command", ""), *config.get("args", ()))))

    @property
    def selected(self) -> bool:
        """Return whether it is selected; what can't be added isn't."""
        return self.planned.chosen and not self.problems


def build_import_rows(
    server_import: ServerImport, text: str, values: Mapping[str, str]
) -> list[ImportRow]:
    """Return the rows; `values` are those that were filled in, by parameter."""
    # Filled parameters are no longer listed by an entry, but stay in the form.
    parameters = {
        entry.name: entry.parameters
        for entry in parse_import(text)
        if "bundle" not in entry.endpoint_config  # its entry lists all of them
    }
    rows: list[ImportRow] = []
    owners: dict[str, str] = {}
    for planned in server_import.planned:
        name = planned.entry.name
        fields = tuple(
            ImportField(
                parameter,
                values.get(parameter.name, ""),
                elsewhere=""
                if owners.setdefault(parameter.name, name) == name
                else owners[parameter.name],
            )
            for parameter in parameters.get(name, planned.entry.parameters)
        )
        rows.append(
            ImportRow(
                planned,
                planned.entry.build_preview(),
                tuple(_list_other_problems(planned)),
                fields,
                server_import.overrides.only_tools.get(name, ()),
                _describe_sign_in(planned),
            )
        )
    return rows


def count_import_states(rows: Sequence[ImportRow]) -> list[tuple[str, Any, int]]:
    """Return the states that occur, with their words and number of rows."""
    states = [row.state for row in rows]
    return [
        (state, title, states.count(state)) for state, title, *_more in STATES if state in states
    ]


def _list_other_problems(planned: PlannedServer) -> list[Problem]:
    return [
        problem
        for problem in planned.problems
        if problem.code != "missing_value"
        and not (planned.private and problem.code == "private_address")
    ]


def _describe_sign_in(planned: PlannedServer) -> Any:
    """Return the title of an entry's authentication, "" if it has none."""
    kind = planned.entry.auth_type
    return "" if kind == Server.Auth.NONE else dict(Server.Auth.choices).get(kind, kind)
