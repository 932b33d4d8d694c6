"""Time zones, and times in the time zone of the reader.

Database values, reports and budget days are UTC, and so is Django's current time zone, so results
don't depend on the reader. Only times that are shown to a person, or that a person enters to filter
a list, use the zone that they chose, with its name.
"""

from datetime import UTC, datetime, time, tzinfo
from zoneinfo import ZoneInfo, available_timezones

from asgiref.local import Local
from django.utils.dateparse import parse_date, parse_time
from django.utils.translation import gettext

from bonobot.core.i18n.localization import format_day
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
    """Return a time in the reader's zone for a log: `06:14:09`, before today `Nov 23, 06:14:09`.

    Times of other years have the year, and no seconds.
    """
    zone = get_reader_time_zone()
    local_time, today = moment.astimezone(zone), datetime.now(zone).date()
    if local_time.date() == today:
        return f"{local_time:%H:%M:%S}"
    if local_time.year != today.year:
        return format_datetime(moment).rpartition(" ")[0]
    return f"{format_day(local_time.date())}, {local_time:%H:%M:%S}"


def parse_datetime(date_text: str, time_text: str, *, is_end: bool = False) -> datetime | None:
    """Return a time that a person entered in their zone, as UTC; None if the date is invalid.

    The end of a period includes its whole day, minute or second, as far as it was entered. A time
    that ends with `Z` is UTC: links use it, so that they mean the same for every reader.
    """
    try:
        day, time_of_day = parse_date(date_text), parse_time(time_text)
        zone = UTC if time_text.endswith("Z") else get_reader_time_zone()
        if time_of_day is None:
            time_of_day = time.max if is_end else time.min
        elif is_end and "." not in time_text:
            seconds = time_of_day.second if time_text.count(":") > 1 else time.max.second
            time_of_day = time_of_day.replace(second=seconds, microsecond=time.max.microsecond)
        return datetime.combine(day, time_of_day, zone).astimezone(UTC) if day else None
    except (ValueError, OverflowError):
        return None


def format_datetime_input(moment: datetime) -> tuple[str, str]:
    """Return the date and the time of day that `parse_datetime` reads, as UTC."""
    utc_time = moment.astimezone(UTC)
    return f"{utc_time:%Y-%m-%d}", f"{utc_time:%H:%M:%S.%f}Z"


def get_zone_name() -> str:
    """Return the name of the reader's zone, as `format_datetime` shows it."""
    return format_datetime(datetime.now(UTC)).rpartition(" ")[2]
