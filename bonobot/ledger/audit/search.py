"""Search the audit log with a limit on the rows that are scanned.

Substrings, columns without an index, and combinations of indexed columns need a scan: indexes for
them would have to be written by every call. Such a search scans a limited number of rows, reports
up to which time, and can be continued from there.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils.text import smart_split, unescape_string_literal

from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput
from bonobot.ledger.models import AuditRow

LOOKED_AT = 25_000
# Columns with an index in order of time; the first one that is filtered on leads the scan.
INDEXED = ("session_id", "agent_id", "server_id", "tool_name", "code", "outcome")
TICK = timedelta(microseconds=1)  # the resolution of the rows' times
# The columns that words are searched in: copies, and the sealed text with the arguments.
COPIES = (
    "tool_name",
    "resource_name",
    "resource_id",
    "agent_name",
    "server_name",
    "actor_label",
    "code",
)
SEALED = "opened"
COLUMNS = (*COPIES, SEALED)
# Each word is compared with each of these columns of each row.
MOST_WORDS = 16
LONGEST = 1_000  # characters


@dataclass(frozen=True)
class SearchCriteria:
    """The filters of a search: columns of `INDEXED_COLUMNS`, and whether there are others."""

    indexed: Mapping[str, Any] = field(default_factory=dict)
    otherwise: bool = False

    @property
    def needs_reading(self) -> bool:
        """Whether the search must scan rows that don't match."""
        return self.otherwise or len(self.indexed) > 1

    @property
    def along(self) -> dict[str, Any]:
        """The filter on the column whose index leads the scan, if there is one."""
        name = next((name for name in INDEXED if name in self.indexed), None)
        return {name: self.indexed[name]} if name else {}


@dataclass(frozen=True)
class AuditSearch:
    """A search of an organization's audit log from `since` to before `until`."""

    organization_id: UUID
    asked: SearchCriteria
    since: datetime | None = None
    until: datetime | None = None

    def looks_to(
        self, behind: datetime | str | None = None, *, back: bool = True
    ) -> datetime | None:
        """Return the time at which a scan stops, or None if it covers all rows (at most 1 query).

        It starts after a time, or at the latest or earliest row, and goes backward or forward. Rows
        with the same time are never separated.
        """
        if not self.asked.needs_reading:
            return None
        rows = AuditRow.objects.of(self.organization_id).filter(**self.asked.along)
        bounds: list[tuple[str, datetime | str | None]] = [
            ("opened_at__gte", self.since),
            ("opened_at__lt", self.until),
            (f"opened_at__{'lt' if back else 'gt'}", behind),
        ]
        for name, moment in bounds:
            rows = rows.filter(**{name: moment}) if moment else rows
        times = rows.order_by("-opened_at" if back else "opened_at")
        last = times.values_list("opened_at", flat=True)[LOOKED_AT - 1 : LOOKED_AT + 1]
        return last[0] if len(last) > 1 else None


def build_text_filter(text: str) -> Q:
    """Return a filter for rows that contain every word of `text`; quoted words count as one.

    Raises `InvalidInput` (field `q`) beyond `MAX_WORDS` or `MAX_TEXT_LENGTH`.
    """
    words = list(_split_words(text))
    if len(words) > MOST_WORDS or len(text) > LONGEST:
        raise InvalidInput(
            "The search has too many words.",
            field="q",
            remedy=format_message("Search for at most {most} words.", most=MOST_WORDS),
        )
    found = Q()
    for word in words:
        # The sealed text is ASCII JSON, so other characters and quotes are escaped.
        anywhere = Q(**{f"{SEALED}__icontains": json.dumps(word)[1:-1]})
        for column in COPIES:
            anywhere |= Q(**{f"{column}__icontains": word})
        found &= anywhere
    return found


def _split_words(text: str) -> Iterator[str]:
    for word in smart_split(text):
        quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "\"'"
        yield unescape_string_literal(word) if quoted else word
