"""How far a search looks back.

What is searched by a part of a word is found by reading rows, and by no index: one that knew parts
of words would have to be written by every call. The same holds for columns without an index, and
for two of those with one together. So such a look goes through so many rows, tells up to when it
went, and goes on from there where somebody wants that.
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
# Whose rows are found by an index, in the order of time; the first that is given is looked along.
INDEXED = ("session_id", "agent_id", "server_id", "tool_name", "code", "outcome")
TICK = timedelta(microseconds=1)  # times of rows are told to that
# Where words are looked for: copies, and the sealed text of the request with its arguments.
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
# Each word is compared with each column of each row; both databases have an end to their patience.
MOST_WORDS = 16
LONGEST = 1_000  # characters


@dataclass(frozen=True)
class SearchCriteria:
    """By what rows are looked for: columns of `INDEXED`, and whether by anything else."""

    indexed: Mapping[str, Any] = field(default_factory=dict)
    otherwise: bool = False

    @property
    def needs_reading(self) -> bool:
        """Tell whether rows that don't fit must be read to find those that do."""
        return self.otherwise or len(self.indexed) > 1

    @property
    def along(self) -> dict[str, Any]:
        """Return the one column whose index leads through the rows, if there is one."""
        name = next((name for name in INDEXED if name in self.indexed), None)
        return {name: self.indexed[name]} if name else {}


@dataclass(frozen=True)
class AuditSearch:
    """A look into one organization's audit: from `since` on, before `until`."""

    organization_id: UUID
    asked: SearchCriteria
    since: datetime | None = None
    until: datetime | None = None

    def looks_to(
        self, behind: datetime | str | None = None, *, back: bool = True
    ) -> datetime | None:
        """Return the time at which it stops: going back, or onward; `behind` a time or from an end.

        None: it sees all that there is (1 query at most). Rows of one moment are never parted.
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
    """Return the rows that have every word of `text` somewhere; `"two words"` are one.

    Raises `Invalid` (field `q`) beyond `MOST_WORDS` or `LONGEST`.
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
        # The sealed text is ASCII: what isn't, and quotes, stand in it as JSON writes them.
        anywhere = Q(**{f"{SEALED}__icontains": json.dumps(word)[1:-1]})
        for column in COPIES:
            anywhere |= Q(**{f"{column}__icontains": word})
        found &= anywhere
    return found


def _split_words(text: str) -> Iterator[str]:
    for word in smart_split(text):
        quoted = len(word) > 1 and word[0] == word[-1] and word[0] in "\"'"
        yield unescape_string_literal(word) if quoted else word
