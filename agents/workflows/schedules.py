"""Schedules of triggers: compute when a run is due next.

A cron expression has five fields (minute, hour, day of the month, month, day of the week) and a
time zone. If both kinds of days are restricted, either matches, as in cron. A time that a clock
change skips is shifted by the change; a repeated time is due once.
"""

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from zoneinfo import ZoneInfo

from celery.schedules import ParseException, crontab_parser

from agents.models import Trigger
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput

MIN_PERIOD_S = 60
MAX_PERIOD_S = 366 * 86_400
# Minute, hour, day of the month, month, day of the week: number of values, and the first.
_FIELDS = ((60, 0), (24, 0), (31, 1), (12, 1), (7, 0))
# There can be eight years between two leap days.
_DAYS_AHEAD = 8 * 366 + 1


@dataclass(frozen=True, kw_only=True)
class TriggerSchedule:
    """A period in seconds, or a cron expression in a time zone."""

    every_s: int | None = None
    cron: str = ""
    time_zone: str = "UTC"

    def compute_next_due(self, now: datetime, previous_due: datetime | None = None) -> datetime:
        """Return the next due time after `now`; raises `InvalidInput` with the field.

        A period is counted from `previous_due`; missed times are skipped.
        """
        zone = _parse_time_zone(self.time_zone)
        if bool(self.cron) == (self.every_s is not None):
            raise InvalidInput(
                "A schedule needs either an interval or a cron expression.",
                field="every_s",
                remedy="Set either `every_s` or `cron`.",
            )
        if self.every_s is None:
            return _compute_next_cron_time(_CronExpression.parse(self.cron), zone, now)
        if not MIN_PERIOD_S <= self.every_s <= MAX_PERIOD_S:
            raise InvalidInput(
                format_message("The interval is {seconds} s.", seconds=self.every_s),
                field="every_s",
                remedy=format_message(
                    "Use a whole number of seconds from {shortest_s} to {longest_s}.",
                    shortest_s=MIN_PERIOD_S,
                    longest_s=MAX_PERIOD_S,
                ),
            )
        period = timedelta(seconds=self.every_s)
        start = previous_due or now
        return start + period * ((now - start) // period + 1)


@dataclass(frozen=True)
class _CronExpression:
    """A parsed cron expression; `matches_either_day` if both kinds of days are restricted."""

    minutes: frozenset[int]
    hours: frozenset[int]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    matches_either_day: bool

    @classmethod
    def parse(cls, text: str) -> "_CronExpression":
        fields = text.split()
        if len(fields) != len(_FIELDS):
            raise _build_cron_error(
                text, format_message("it has {count} fields", count=len(fields))
            )
        values = []
        for field_text, (size, first) in zip(fields, _FIELDS, strict=True):
            try:
                values.append(frozenset(crontab_parser(size, first).parse(field_text)))
            except (ParseException, ValueError, ZeroDivisionError) as error:
                raise _build_cron_error(text, str(error).rstrip(".")) from None
        are_restricted = [not fields[position].startswith("*") for position in (2, 4)]
        minutes, hours, days, months, weekdays = values
        return cls(minutes, hours, days, months, weekdays, matches_either_day=all(are_restricted))

    def is_due_on(self, day: date) -> bool:
        day_matches, weekday_matches = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        is_matching_day = (
            day_matches or weekday_matches
            if self.matches_either_day
            else day_matches and weekday_matches
        )
        return is_matching_day and day.month in self.months


def _compute_next_cron_time(cron: _CronExpression, zone: ZoneInfo, now: datetime) -> datetime:
    first_day = now.astimezone(zone).date()
    for day in (first_day + timedelta(days=offset) for offset in range(_DAYS_AHEAD)):
        if not cron.is_due_on(day):
            continue
        times = (
            datetime(day.year, day.month, day.day, hour, minute, tzinfo=zone).astimezone(UTC)
            for hour in cron.hours
            for minute in cron.minutes
        )
        if (next_time := min((time for time in times if time > now), default=None)) is not None:
            return next_time
    raise InvalidInput("The schedule is never due.", field="cron", remedy="Use dates that exist.")


def _parse_time_zone(name: str) -> ZoneInfo:
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, KeyError):
        raise InvalidInput(
            format_message("Unknown time zone {name!r}.", name=name[:64]),
            field="time_zone",
            remedy="Use a name from the IANA database, such as UTC or Europe/Berlin.",
        ) from None


def _build_cron_error(text: str, detail: str) -> InvalidInput:
    return InvalidInput(
        format_message(
            "{text!r} isn't a valid cron expression: {why}.", text=text[:100], why=detail[:200]
        ),
        field="cron",
        remedy="Use minute, hour, day of month, month, day of week, such as 30 6 * * mon-fri.",
    )


def build_schedule(row: Trigger) -> TriggerSchedule:
    return TriggerSchedule(every_s=row.every_s, cron=row.cron, time_zone=row.time_zone)
