"""Times in the time zone of the reader."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
import time_machine
from django.utils import translation

from bonobot.core.i18n import time_zones

WINTER, SUMMER = (datetime(2026, month, 1, 23, 30, 5, tzinfo=UTC) for month in (1, 7))
YEAR = timedelta(days=365)


@pytest.fixture(autouse=True)
def _reset_time_zone() -> Iterator[None]:
    yield
    time_zones.set_reader_time_zone("")


@pytest.mark.parametrize(
    ("name", "winter", "summer"),
    [
        ("", "2026-01-01 23:30 UTC", "2026-07-01 23:30 UTC"),
        ("Europe/Berlin", "2026-01-02 00:30 CET", "2026-07-02 01:30 CEST"),
        ("America/Sao_Paulo", "2026-01-01 20:30 UTC-03", "2026-07-01 20:30 UTC-03"),
        ("Nowhere/Atall", "2026-01-01 23:30 UTC", "2026-07-01 23:30 UTC"),
    ],
)
def test_a_time_is_shown_in_the_readers_time_zone_with_its_name(
    name: str, winter: str, summer: str
) -> None:
    time_zones.set_reader_time_zone(name)
    assert (time_zones.format_datetime(WINTER), time_zones.format_datetime(SUMMER)) == (
        winter,
        summer,
    )


def test_seconds_are_shown_on_request() -> None:
    assert time_zones.format_datetime(WINTER, seconds=True) == "2026-01-01 23:30:05 UTC"


def test_times_of_a_log_have_the_day_unless_it_is_today() -> None:
    with time_machine.travel(SUMMER, tick=False):
        assert time_zones.format_time_of_day(SUMMER) == "23:30:05"
        assert time_zones.format_time_of_day(WINTER) == "Jan 1, 23:30:05"
        assert time_zones.format_time_of_day(WINTER - YEAR) == "2025-01-01 23:30"


def test_dates_have_the_order_of_the_readers_language() -> None:
    with translation.override("de"):
        assert time_zones.format_datetime(WINTER) == "01.01.2026 23:30 UTC"
        assert time_zones.format_time_of_day(WINTER - YEAR) == "01.01.2025 23:30"
        assert time_zones.get_zone_name() == "UTC"


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("2026-07-02", ""), "2026-07-02T04:00:00"),
        (("2026-07-02", "9:30"), "2026-07-02T13:30:00"),
        (("2026-07-02", "09:30:00.25Z"), "2026-07-02T09:30:00.250000"),
        (("2026-07-02", "soon"), "2026-07-02T04:00:00"),
        (("2026-99-02", "09:30"), None),
        (("2026-07-02", "25:00"), None),
        (("", "09:30"), None),
        (("9999-12-31", "23:59"), None),
    ],
)
def test_an_entered_time_is_of_the_readers_zone(
    texts: tuple[str, str], expected: str | None
) -> None:
    time_zones.set_reader_time_zone("America/New_York")
    moment = time_zones.parse_datetime(*texts)
    assert moment == (datetime.fromisoformat(f"{expected}+00:00") if expected else None)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "23:59:59.999999"),
        ("09:30", "09:30:59.999999"),
        ("09:30:10", "09:30:10.999999"),
        ("09:30:10.5", "09:30:10.500000"),
    ],
)
def test_the_end_of_a_period_includes_what_was_entered(text: str, expected: str) -> None:
    moment = time_zones.parse_datetime("2026-07-02", text, is_end=True)
    assert moment == datetime.fromisoformat(f"2026-07-02T{expected}+00:00")


def test_a_time_in_a_link_means_the_same_in_every_zone() -> None:
    texts = time_zones.format_datetime_input(SUMMER)
    time_zones.set_reader_time_zone("Asia/Tokyo")
    assert time_zones.parse_datetime(*texts) == SUMMER
    assert time_zones.parse_datetime(*texts, is_end=True) == SUMMER


def test_time_zones_can_be_chosen_and_file_paths_cant() -> None:
    assert {"Europe/Berlin", "Asia/Kolkata"} <= time_zones.list_time_zones()
    assert not time_zones.list_time_zones() & {
        "",
        "UTC",
        "EST5EDT",
        "Etc/GMT+3",
        "../../etc/passwd",
        "localtime",
    }
    assert all(
        len(name) <= time_zones.MAX_ZONE_NAME and ZoneInfo(name)
        for name in time_zones.list_time_zones()
    )
