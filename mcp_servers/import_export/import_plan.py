"""Plan an import.

`plan_servers` parses the text and checks each entry as creating it would, so that the preview is
accurate. The caller then creates the entries that are ready, each atomically.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import urlsplit
from uuid import UUID

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.http.egress import resolve_for_preview
from bonobot.core.http.ip_addresses import AddressScope
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from mcp_servers.bundles.import_entries import fill_bundle_entries
from mcp_servers.import_export.entries import ImportEntry
from mcp_servers.import_export.parse_servers import parse_import
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec, clean_server_spec
from mcp_servers.server_names import check_name

PRIVATE_ADDRESS_REMEDY = format_message(
    "A platform administrator can allow it here, or with `allow_private: true` at the server in "
    "the file."
)


@dataclass(frozen=True, kw_only=True)
class ImportChoices:
    """A person's choices for an import.

    `values` fills parameters by name; `allow_private` and `chosen` name entries (None: all valid
    ones); `new_names` renames servers, by entry; names must be unused in `scope_id` (None: the
    pool); `known_fields` are handled by the caller; `only_tools` are the allowed tools by entry.
    """

    values: Mapping[str, str] = field(default_factory=dict, repr=False)
    allow_private: Collection[str] = ()
    chosen: Collection[str] | None = None
    new_names: Mapping[str, str] = field(default_factory=dict)
    scope_id: UUID | None = None
    known_fields: Collection[str] = ()
    only_tools: Mapping[str, Sequence[str]] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PlannedServer:
    """One entry of a plan; it can be created if `problems` is empty.

    `private` means that its address is private, which a platform administrator may allow.
    """

    entry: ImportEntry
    spec: ServerSpec | None = field(default=None, repr=False)
    problems: tuple[Problem, ...] = ()
    private: bool = False
    chosen: bool = True

    @property
    def ready(self) -> bool:
        """Tell whether the entry will be created."""
        return self.chosen and self.spec is not None and not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Return the preview: no secrets, all problems, and whether a permission is needed."""
        return self.entry.build_preview() | {
            "action": "add" if self.ready else "invalid" if self.problems else "skip",
            "private": self.private,
            "problems": [problem.as_dict() for problem in self.problems],
        }


def plan_servers(
    principal: Principal, text: str, choices: ImportChoices | None = None
) -> tuple[PlannedServer, ...]:
    """Return the plan for a pasted text; raises `Problem` if it can't be parsed.

    Host names are resolved to detect private addresses, up to 5 s each: never call it on the loop.
    """
    choices = choices or ImportChoices()
    entries = parse_import(text, values=choices.values, known_fields=choices.known_fields)
    entries = fill_bundle_entries(principal.organization_id, entries, choices.values)
    return plan_entries(principal, entries, choices)


def plan_entries(
    principal: Principal, entries: Collection[ImportEntry], choices: ImportChoices
) -> tuple[PlannedServer, ...]:
    principal.require(Action.MANAGE_SERVERS)
    existing_servers = Server.objects.in_scope(choices.scope_id or principal.organization_id)
    used_names = list(existing_servers.values_list("name", flat=True))
    return tuple(_plan_entry(principal, entry, choices, used_names) for entry in entries)


def _plan_entry(
    principal: Principal, entry: ImportEntry, choices: ImportChoices, used_names: Collection[str]
) -> PlannedServer:
    is_chosen = choices.chosen is None or entry.name in choices.chosen
    planned_server = PlannedServer(entry=entry, problems=entry.problems, chosen=is_chosen)
    if entry.problems:
        return planned_server
    is_private = _is_private(entry)
    is_permitted = entry.allow_private or entry.name in choices.allow_private
    is_allowed = is_private and is_permitted
    name = choices.new_names.get(entry.name, entry.name)
    spec = ServerSpec(
        **entry.build_configuration() | {"name": name},
        allow_private=is_allowed,
        only_tools=choices.only_tools.get(entry.name),
    )
    try:
        check_name(name, used_names)
        clean_server_spec(principal, spec)
    except Problem as problem:
        if problem.code == "private_address":
            problem.remedy = PRIVATE_ADDRESS_REMEDY
        return replace(planned_server, problems=(problem,), private=is_private)
    if is_private and not is_allowed:
        return replace(
            planned_server, problems=(_build_private_address_problem(entry),), private=True
        )
    return replace(planned_server, spec=spec, private=is_private)


def _is_private(entry: ImportEntry) -> bool:
    host = urlsplit(str(entry.endpoint_config.get("url", ""))).hostname
    return bool(host) and any(
        address.scope is AddressScope.PRIVATE for address in resolve_for_preview(str(host))
    )


def _build_private_address_problem(entry: ImportEntry) -> Problem:
    return Problem(
        format_message("The address of `{name}` is private.", name=entry.name),
        code="private_address",
        field="endpoint_config.url",
        rule="egress",
        remedy=PRIVATE_ADDRESS_REMEDY,
    )
