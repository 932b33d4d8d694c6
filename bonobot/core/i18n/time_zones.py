"""Time zones, and times in the time zone of the reader.

Database values, reports, budget days and filters are UTC, and so is Django's current time zone, so
results don't depend on the reader. Only times shown to a person use the zone that they chose, with
its name.
"""

from datetime import UTC, datetime, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from asgiref.local import Local
from django.utils.translation import gettext

from bonobot.core.process_cache import compute_once

# The IANA database also has legacy names, and fixed offsets without daylight saving time.
TIME_ZONE_AREAS = frozenset(
    (
        *("Africa", "America", "Antarctica", "Arctic", "Asia"),
        *("Atlantic", "Australia", "Europe", "Indian", "Pacific"),
    )
)
MAX_ZONE_NAME = 64  # characters of a name
_reader_state = Local()


@compute_once
def list_time_zones() -> frozenset[str]:
    """Return the time zones that a person can choose."""
    return frozenset(
        name for name in available_timezones() if name.partition("/")[0] in TIME_ZONE_AREAS
    )


def set_reader_time_zone(name: str) -> None:
    """Format the times of this request in a zone; UTC if the name is blank or unknown."""
    _reader_state.zone = ZoneInfo(name) if name in list_time_zones() else UTC


def get_reader_time_zone() -> tzinfo:
    """Return the zone in which the times of this request are formatted."""
    zone: tzinfo = getattr(_reader_state, "zone", UTC)
    return zone


def format_datetime(moment: datetime, *, seconds: bool = False) -> str:
    """Return a time in the reader's zone with its name: `2026-11-23 06:14 CET`.

    Other languages have their own order of the date: `23.11.2026 06:14 CET` in German.
    """
    zone: tzinfo = getattr(_reader_state, "zone", UTC)
    local_time = moment.astimezone(zone)
    name = local_time.tzname() or ""
    # Zones without an abbreviation are named by their offset.
    zone_name = name if name.isalpha() else f"UTC{name}"
    date_format, time_format = gettext("%Y-%m-%d"), "%H:%M:%S" if seconds else "%H:%M"
    return f"{local_time.strftime(f'{date_format} {time_format}')} {zone_name}"


def format_time_of_day(moment: datetime) -> str:
    """Return a time in the reader's zone for a log: `06:14:09`, before today `11-23 06:14:09`."""
    zone: tzinfo = getattr(_reader_state, "zone", UTC)
    local_time = moment.astimezone(zone)
    is_today = local_time.date() == datetime.now(zone).date()
    return local_time.strftime("%H:%M:%S" if is_today else f"{gettext('%m-%d')} %H:%M:%S")


def get_zone_name() -> str:
    """Return the name of the reader's zone, as `format_datetime` shows it."""
    return format_datetime(datetime.now(UTC)).rpartition(" ")[2]
