"""Search the audit log with a limit on the rows that are scanned.

Substrings, columns without an index, and combinations of indexed columns need a scan: indexes for
them would have to be written by every call. Such a search scans a limited number of rows, reports
up to which time, and can be continued from there.
"""

import json
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.text import smart_split, unescape_string_literal

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.audit.renamed_codes import list_code_names
from bonobot.ledger.models import AuditRow
from bonobot.ledger.models.audit import AuditQuerySet
from bonobot.ledger.types import FlowLabel

FLOW_LABELS = tuple(label.value for label in FlowLabel)
MAX_ROWS_SCANNED = 25_000
# The database compares each word with each searched column of each scanned row.
MAX_WORDS = 16
MAX_TEXT_LENGTH = 1_000  # characters
TIME_RESOLUTION = timedelta(microseconds=1)  # of the rows' times
# Columns with an index in order of time; the first one that is filtered on leads the scan.
INDEXED_COLUMNS = ("session_id", "agent_id", "server_id", "tool_name", "code", "outcome")
# The columns that words are searched in: copies of fields, and the JSON of the whole entry.
COPIED_COLUMNS = (
    "tool_name",
    "resource_name",
    "resource_id",
    "agent_name",
    "server_name",
    "actor_label",
    "code",
)
JSON_COLUMN = "opened"
SEARCHED_COLUMNS = (*COPIED_COLUMNS, JSON_COLUMN)


@dataclass(frozen=True)
class SearchCriteria:
    """The filters of a search: columns of `INDEXED_COLUMNS`, and whether there are others."""

    indexed: Mapping[str, Any] = field(default_factory=dict)
    has_other_filters: bool = False

    @property
    def needs_scan(self) -> bool:
        """Whether the search must scan rows that don't match."""
        return self.has_other_filters or len(self.indexed) > 1

    @property
    def leading_filter(self) -> dict[str, Any]:
        """The filter on the column whose index leads the scan, if there is one."""
        name = next((name for name in INDEXED_COLUMNS if name in self.indexed), None)
        if name == "code":  # old rows have its former names
            return {"code__in": list_code_names(self.indexed[name])}
        return {name: self.indexed[name]} if name else {}


@dataclass(frozen=True)
class AuditSearch:
    """A search of an organization's audit log from `since` to before `until`."""

    organization_id: UUID
    criteria: SearchCriteria
    since: datetime | None = None
    until: datetime | None = None

    def find_stop_time(
        self, after: datetime | str | None = None, *, is_backward: bool = True
    ) -> datetime | None:
        """Return the time at which a scan stops, or None if it covers all rows (at most 1 query).

        The scan goes backward or forward in time. It starts after `after` (a cursor has a text), by
        default at the latest or earliest row. Rows with the same time are never separated.
        """
        if not self.criteria.needs_scan:
            return None
        rows = AuditRow.objects.for_organization(self.organization_id).filter(
            **self.criteria.leading_filter
        )
        bounds: list[tuple[str, datetime | str | None]] = [
            ("opened_at__gte", self.since),
            ("opened_at__lt", self.until),
            (f"opened_at__{'lt' if is_backward else 'gt'}", after),
        ]
        for lookup, bound in bounds:
            if bound:
                rows = rows.filter(**{lookup: bound})
        times = rows.order_by("-opened_at" if is_backward else "opened_at")
        last_times = times.values_list("opened_at", flat=True)[
            MAX_ROWS_SCANNED - 1 : MAX_ROWS_SCANNED + 1
        ]
        return last_times[0] if len(last_times) > 1 else None


def build_label_filter(label: str) -> Q:
    """Return a filter for calls whose tool has a flow label; raises `InvalidInput` if unknown."""
    if label not in FLOW_LABELS:
        raise InvalidInput(
            format_message("Must be one of: {choices}.", choices=", ".join(FLOW_LABELS)),
            field="flow_label",
        )
    # The first condition skips most rows without evaluating the regular expression.
    pattern = rf'"labels":\[[^]]*"{label}"'
    return Q(opened__contains='"labels":') & Q(opened__regex=pattern)


def build_text_filter(text: str) -> Q:
    """Return a filter for rows that contain every word of `text`; quoted words count as one.

    Raises `InvalidInput` (field `q`) beyond `MAX_WORDS` or `MAX_TEXT_LENGTH`.
    """
    if len(text) > MAX_TEXT_LENGTH:
        raise InvalidInput(
            format_message("The text has {count} characters.", count=len(text)),
            field="q",
            remedy=format_message("Use at most {limit} characters.", limit=MAX_TEXT_LENGTH),
        )
    words = list(_split_words(text))
    if len(words) > MAX_WORDS:
        raise InvalidInput(
            "The search has too many terms.",
            field="q",
            remedy=format_message("Use at most {most} search terms.", most=MAX_WORDS),
        )
    text_filter = Q()
    for word in words:
        # ASCII JSON: other characters and quotes are escaped in the column, too.
        word_filter = Q(**{f"{JSON_COLUMN}__icontains": json.dumps(word)[1:-1]})
        for column in COPIED_COLUMNS:
            word_filter |= Q(**{f"{column}__icontains": word})
        text_filter &= word_filter
    return text_filter


def query_object_changes(organization_id: UUID, object_ids: Collection[str]) -> AuditQuerySet:
    """Return the audit entries of changes of these objects, latest first."""
    rows = AuditRow.objects.for_organization(organization_id).filter(
        event_type="change", resource_id__in=object_ids
    )
    # A token that reads labeled text gets its labels, which changes only the token.
    return rows.exclude(action__endswith="_labels_read").order_by("-seq")


def _split_words(text: str) -> Iterator[str]:
    for word in smart_split(text):
        is_quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "\"'"
        yield unescape_string_literal(word) if is_quoted else word
