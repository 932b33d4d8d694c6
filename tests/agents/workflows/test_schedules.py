"""Due times of schedules: intervals, cron expressions, daylight saving time."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.workflows.schedules import TriggerSchedule
from bonobot.core.problems import InvalidInput


def parse_utc(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


@pytest.mark.parametrize(
    ("cron", "zone", "now", "due"),
    [
        ("0 3 * * *", "UTC", "2026-11-22T02:59:59", "2026-11-22T03:00"),
        ("0 3 * * *", "UTC", "2026-11-22T03:00", "2026-11-23T03:00"),
        ("*/15 9-17 * * mon-fri", "UTC", "2026-11-20T17:46", "2026-11-23T09:00"),
        ("30 6 * * *", "Europe/Berlin", "2026-07-01T04:00", "2026-07-01T04:30"),
        ("30 6 * * *", "Europe/Berlin", "2026-12-01T04:00", "2026-12-01T05:30"),
        ("0 0 29 2 *", "UTC", "2096-03-01T00:00", "2104-02-29T00:00"),
        ("0 0 1 1 *", "UTC", "2026-01-01T00:00", "2027-01-01T00:00"),
        # If both kinds of day are restricted, either matches: the 13th or a Friday.
        ("0 0 13 * 5", "UTC", "2026-11-22T00:00", "2026-11-27T00:00"),
        ("0 0 13 * 5", "UTC", "2026-12-11T00:00", "2026-12-13T00:00"),
        ("0 0 * * 0", "UTC", "2026-11-22T00:00", "2026-11-29T00:00"),
        # 02:30 doesn't exist on 29 March 2026, and exists twice on 25 October.
        ("30 2 * * *", "Europe/Berlin", "2026-03-29T00:00", "2026-03-29T01:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:00", "2026-10-25T00:30"),
        ("30 2 * * *", "Europe/Berlin", "2026-10-25T00:30", "2026-10-26T01:30"),
    ],
)
def test_a_cron_expression_has_its_next_time(cron, zone, now, due):
    assert TriggerSchedule(cron=cron, time_zone=zone).compute_next_due(parse_utc(now)) == parse_utc(
        due
    )


def test_an_interval_skips_missed_times():
    schedule = TriggerSchedule(every_s=600)
    assert schedule.compute_next_due(parse_utc("2026-11-22T10:00")) == parse_utc("2026-11-22T10:10")
    late = schedule.compute_next_due(parse_utc("2026-11-22T13:07"), parse_utc("2026-11-22T10:00"))
    assert late == parse_utc("2026-11-22T13:10")
    on_time = schedule.compute_next_due(
        parse_utc("2026-11-22T10:00"), parse_utc("2026-11-22T10:00")
    )
    assert on_time == parse_utc("2026-11-22T10:10")


@given(
    st.integers(60, 86_400),
    st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)),
    st.integers(0, 10**7),
)
def test_the_next_time_of_an_interval_is_on_schedule_and_in_the_future(every_s, due, late_s):
    now = datetime.fromtimestamp(due.timestamp() + late_s, UTC)
    next_due = TriggerSchedule(every_s=every_s).compute_next_due(now, due)
    assert now < next_due
    assert (next_due - now).total_seconds() <= every_s
    assert abs((next_due - due).total_seconds() % every_s) < 1e-3


@pytest.mark.parametrize(
    ("schedule", "field"),
    [
        (TriggerSchedule(), "every_s"),
        (TriggerSchedule(every_s=60, cron="* * * * *"), "every_s"),
        (TriggerSchedule(every_s=59), "every_s"),
        (TriggerSchedule(every_s=10**9), "every_s"),
        (TriggerSchedule(cron="* * * *"), "cron"),
        (TriggerSchedule(cron="60 * * * *"), "cron"),
        (TriggerSchedule(cron="* * 0 * *"), "cron"),
        (TriggerSchedule(cron="*/0 * * * *"), "cron"),
        (TriggerSchedule(cron="* * * * someday"), "cron"),
        (TriggerSchedule(cron="0 0 30 2 *"), "cron"),
        (TriggerSchedule(cron="* * * * *", time_zone="Mars/Olympus"), "time_zone"),
        (TriggerSchedule(cron="* * * * *", time_zone="../etc/passwd"), "time_zone"),
        (TriggerSchedule(cron="* * * * *", time_zone="Europe"), "time_zone"),
    ],
)
def test_an_invalid_schedule_is_refused(schedule, field):
    with pytest.raises(InvalidInput) as caught:
        schedule.compute_next_due(parse_utc("2026-11-22T10:00"))
    assert caught.value.field == field
