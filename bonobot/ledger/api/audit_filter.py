"""Filters of the audit log, for REST and the command line, without REST's slow imports."""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

import django_filters
from django.db.models import Q

from bonobot.core.api.filters import StrictFilterSet
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.audit.renamed_codes import list_action_names, list_code_names
from bonobot.ledger.audit.search import (
    FLOW_LABELS,
    AuditSearch,
    SearchCriteria,
    build_label_filter,
    build_text_filter,
)
from bonobot.ledger.models import AuditQuerySet, AuditRow
from bonobot.ledger.types import EVENT_TYPES


class RenamedValueFilter(django_filters.CharFilter):
    """A filter by a value, which finds its old and new names."""

    def __init__(self, list_names: Callable[[str], list[str]], **options: Any) -> None:
        """Create a filter; `list_names` returns all names of a value."""
        super().__init__(**options)
        self.list_names = list_names

    def filter(self, qs: AuditQuerySet, value: str) -> AuditQuerySet:
        return qs.filter(**{f"{self.field_name}__in": self.list_names(value)}) if value else qs


class AuditFilter(StrictFilterSet):
    """Filters for audit entries; agents, servers, and actors by ID or name."""

    agent = django_filters.CharFilter(method="filter_by_agent", label="ID or name of the agent")
    server = django_filters.CharFilter(method="filter_by_server", label="ID or name of the server")
    session = django_filters.UUIDFilter(field_name="session_id")
    tool = django_filters.CharFilter(
        method="filter_by_tool", label="Name of the tool, on its server or as models see it"
    )
    action = RenamedValueFilter(list_action_names, field_name="action")
    event_type = django_filters.ChoiceFilter(
        choices=[(kind, kind) for kind in EVENT_TYPES], label="Type of the event"
    )
    outcome = django_filters.ChoiceFilter(choices=AuditRow.Outcome.choices)
    decision = django_filters.ChoiceFilter(choices=AuditRow.Decision.choices)
    code = RenamedValueFilter(list_code_names, field_name="code")
    actor = django_filters.CharFilter(method="filter_by_actor", label="ID or name of the actor")
    rule = django_filters.CharFilter(field_name="rule")
    resource = django_filters.CharFilter(
        field_name="resource_id", label="ID of the affected object"
    )
    flow_label = django_filters.ChoiceFilter(
        choices=[(label, label) for label in FLOW_LABELS],
        method="filter_by_label",
        label="Flow label of the called tool",
    )
    q = django_filters.CharFilter(
        method="filter_by_words", label="Words that must all occur in names, codes, or arguments"
    )
    since = django_filters.IsoDateTimeFilter(field_name="opened_at", lookup_expr="gte")
    until = django_filters.IsoDateTimeFilter(field_name="opened_at", lookup_expr="lt")

    def build_search(self, organization_id: UUID) -> AuditSearch:
        """Return the search for these filters, which must be valid."""
        values = {name: value for name, value in self.form.cleaned_data.items() if value}
        since, until, _form = (values.pop(name, None) for name in ("since", "until", "form"))
        indexed = {column: values.pop(name) for name, column in self._list_indexed_columns(values)}
        criteria = SearchCriteria(indexed, has_other_filters=bool(values))
        return AuditSearch(organization_id, criteria, since=since, until=until)

    @staticmethod
    def _list_indexed_columns(values: Mapping[str, Any]) -> list[tuple[str, str]]:
        """Return the (filter, column) pairs of filters on an indexed column."""
        exact_fields = [("session", "session_id"), ("code", "code"), ("outcome", "outcome")]
        ids = [
            (name, f"{name}_id") for name in ("agent", "server") if parse_uuid(values.get(name, ""))
        ]
        return [(name, column) for name, column in (*exact_fields, *ids) if name in values]

    def filter_by_words(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows.filter(build_text_filter(value))

    def filter_by_agent(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows.filter(_match_id_or_name("agent", value))

    def filter_by_server(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows.filter(_match_id_or_name("server", value))

    def filter_by_tool(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows.filter(Q(tool_name=value) | Q(resource_id=value))

    def filter_by_label(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows.filter(build_label_filter(value))

    def filter_by_actor(self, rows: AuditQuerySet, name: str, value: str) -> AuditQuerySet:
        return rows.filter(Q(actor_id=value) | Q(actor_label=value))


def _match_id_or_name(field: str, value: str) -> Q:
    pk = parse_uuid(value)
    return Q(**{f"{field}_id": pk}) if pk else Q(**{f"{field}_name": value})
