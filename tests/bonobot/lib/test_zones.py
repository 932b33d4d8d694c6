"""The clock that a reader sees moments by."""

from collections.abc import Iterator
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from bonobot.lib import zones

WINTER, SUMMER = (datetime(2026, month, 1, 23, 30, 5, tzinfo=UTC) for month in (1, 7))


@pytest.fixture(autouse=True)
def _afterwards() -> Iterator[None]:
    yield
    zones.read_in("")


@pytest.mark.parametrize(
    ("name", "winter", "summer"),
    [
        ("", "2026-01-01 23:30 UTC", "2026-07-01 23:30 UTC"),
        ("Europe/Berlin", "2026-01-02 00:30 CET", "2026-07-02 01:30 CEST"),
        ("America/Sao_Paulo", "2026-01-01 20:30 UTC-03", "2026-07-01 20:30 UTC-03"),
        ("Nowhere/Atall", "2026-01-01 23:30 UTC", "2026-07-01 23:30 UTC"),
    ],
)
def test_a_moment_is_written_by_the_readers_clock_with_its_name(
    name: str, winter: str, summer: str
) -> None:
    zones.read_in(name)
    assert (zones.written(WINTER), zones.written(SUMMER)) == (winter, summer)


def test_seconds_are_told_where_they_are_asked_for() -> None:
    assert zones.written(WINTER, seconds=True) == "2026-01-01 23:30:05 UTC"


def test_places_can_be_chosen_and_files_cannot() -> None:
    assert {"Europe/Berlin", "Asia/Kolkata"} <= zones.names()
    assert not zones.names() & {"", "UTC", "EST5EDT", "Etc/GMT+3", "../../etc/passwd", "localtime"}
    assert all(len(name) <= zones.LONGEST and ZoneInfo(name) for name in zones.names())
