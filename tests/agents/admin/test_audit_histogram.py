"""The time axis of the histogram above the audit log."""

from datetime import UTC, datetime, timedelta

import pytest
from django.http import QueryDict
from django.utils import timezone

from agents.admin import audit
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.audit.call_histogram import ActivityBar
from tests import admin_client
from tests.agents.admin.test_audit import create_call


@pytest.fixture
def auditor(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.AUDITOR)


def test_the_time_axis_has_round_times_and_the_days_where_they_begin() -> None:
    start = datetime(2026, 3, 4, tzinfo=UTC)

    def list_labels(start: datetime, count: int, step: timedelta) -> list[list[str]]:
        begins = [start + number * step for number in range(count)]
        ticks = audit._build_ticks([ActivityBar(moment, moment + step) for moment in begins])
        return [label for _place, *label in ticks]

    hours = list_labels(start.replace(hour=13), 24, timedelta(hours=1))
    assert hours[:4] == [["16:00", "Mar 4"], ["20:00", ""], ["00:00", "Mar 5"], ["04:00", ""]]
    minutes = list_labels(start.replace(hour=12, minute=50), 37, timedelta(minutes=5))
    assert minutes[:2] == [["13:00", "Mar 4"], ["13:30", ""]]
    three_hours = list_labels(start.replace(hour=12), 24, timedelta(hours=3))
    assert three_hours == [["Mar 5", ""], ["Mar 6", ""], ["Mar 7", ""]]
    assert list_labels(start, 30, timedelta(days=1))[:2] == [["Mar 4", ""], ["Mar 9", ""]]


@pytest.mark.parametrize(
    ("hour", "count", "step", "end"),
    [
        (12, 61, timedelta(minutes=1), ("13:01", "")),
        (13, 25, timedelta(hours=1), ("14:00", "Mar 5")),
        (0, 24, timedelta(hours=1), ("00:00", "Mar 5")),
        (0, 54, timedelta(hours=3), ("Mar 10", "")),
        (0, 56, timedelta(hours=3), ("Mar 10", "")),
        (0, 30, timedelta(days=1), ("Apr 2", "")),
    ],
    ids=["1 hour", "24 hours", "1 day", "7 days until now", "7 days", "30 days"],
)
def test_the_last_label_of_the_time_axis_is_the_end_of_the_range(
    hour: int, count: int, step: timedelta, end: tuple[str, str]
) -> None:
    start = datetime(2026, 3, 4, hour, tzinfo=UTC)
    begins = [start + number * step for number in range(count)]
    ticks = audit._build_ticks([ActivityBar(moment, moment + step) for moment in begins])
    assert ticks[-1] == (100.0, *end)
    assert ticks[-2][0] <= 100 * audit.MAX_PLACE  # with room for the last one
    assert ticks[-2][1:] != end


@pytest.mark.parametrize(
    ("length", "span"),
    [
        (timedelta(hours=2), "Mar 4 13:30 – 15:30"),
        (timedelta(hours=24), "Mar 3 15:30 – Mar 4 15:30"),
        (timedelta(days=7), "Feb 25 – Mar 4"),
    ],
)
def test_the_span_has_times_of_day_if_it_is_a_day_or_less(length: timedelta, span: str) -> None:
    until = datetime(2026, 3, 4, 15, 30, tzinfo=UTC)
    assert audit._format_span(until - length, until) == span


def test_the_legend_has_only_outcomes_that_the_bars_have() -> None:
    start = datetime(2026, 3, 4, tzinfo=UTC)
    bar = ActivityBar(start, start + timedelta(hours=1))
    bar.counts["refused"] = 1
    histogram = audit.Histogram([{"bar": bar}], 1, 1, timedelta(hours=1), "", [])
    assert [outcome for outcome, _title in histogram.legend] == ["refused"]


@pytest.mark.django_db
@pytest.mark.parametrize("age", [timedelta(minutes=5), timedelta(days=40), timedelta(days=800)])
def test_the_bars_cover_all_time_from_the_first_entry_without_a_period(
    acme: Organization, age: timedelta
) -> None:
    first = create_call(acme, opened_at=timezone.now() - age)
    histogram = audit.build_histogram(acme.pk, QueryDict(), (None, None))
    assert histogram is not None
    start = histogram.bars[0]["bar"].begins
    assert start <= first.opened_at
    # At least a day, and at most one bar more than the first entry needs.
    assert start > min(first.opened_at, timezone.now() - audit.DEFAULT_SPAN) - histogram.step
    assert histogram.span == ""


@pytest.mark.django_db
def test_a_live_tail_gets_the_numbers_and_bars_with_the_rows(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_call(acme, outcome="error")
    url = admin_client.build_url("ledger_auditrow_changelist")
    headers = {"Bonobot-Fragment": "1", "Bonobot-Summary": "1"}
    answer = auditor.client.get(url, {"outcome__in": "error"}, headers=headers).content.decode()
    legend, bars = (
        part.partition("</template>")[0] for part in answer.split("data-new-summary")[1:]
    )
    assert "1 entry · 1 call" in " ".join(admin_client.get_text(f"<p {legend}").split())
    assert "data-histogram" in bars
