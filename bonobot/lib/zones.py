"""Zones: the clock that a reader sees moments by.

Rows, reports, budgets' days and filters are UTC, and so is Django's current time zone: nothing that
is counted or asked for shifts with who looks. Only how a moment is written for a person follows
the zone that they chose, and names it.
"""

from datetime import UTC, datetime, tzinfo
from functools import cache
from zoneinfo import ZoneInfo, available_timezones

from asgiref.local import Local

# The IANA database has older names beside these, and offsets, which know no summer.
AREAS = frozenset(
    (
        *("Africa", "America", "Antarctica", "Arctic", "Asia"),
        *("Atlantic", "Australia", "Europe", "Indian", "Pacific"),
    )
)
LONGEST = 64  # characters of a name
_reader = Local()


@cache
def names() -> frozenset[str]:
    """Return the names that a person can choose: places, by area."""
    return frozenset(one for one in available_timezones() if one.partition("/")[0] in AREAS)


def read_in(name: str) -> None:
    """Write the moments of this request by a zone from now on; no name, or an unknown one: UTC."""
    _reader.zone = ZoneInfo(name) if name in names() else UTC


def written(moment: datetime, *, seconds: bool = False) -> str:
    """Return a moment by the reader's clock, with the zone's name: `2026-11-23 06:14 CET`."""
    zone: tzinfo = getattr(_reader, "zone", UTC)
    local = moment.astimezone(zone)
    name = local.tzname() or ""
    # Zones without letters of their own are named by their offset.
    called = name if name.isalpha() else f"UTC{name}"
    return f"{local:%Y-%m-%d %H:%M:%S} {called}" if seconds else f"{local:%Y-%m-%d %H:%M} {called}"
