"""Schedules: rows follow the code, edits stay, and nothing stops what everything stands on."""

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from agents.console import settings_check
from bonobot.accounts.roles import Role
from bonobot.celery import app
from bonobot.core.problems import Problem
from bonobot.jobs import schedules
from bonobot.jobs.celery_beat import BonobotScheduler
from bonobot.jobs.schedules import (
    MAX_ESSENTIAL_PERIODS,
    compute_period_s,
    read_default_period_s,
    save_schedule,
    sync_schedules,
)
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
CODE = {
    "sweep": {"task": "agents.tasks.sweep", "schedule": 10.0, "options": {"expires": 9}},
    "prune": {"task": "mcp_servers.tasks.prune_checks", "schedule": 3600.0},
}


@pytest.fixture
def boss():
    return factories.build_administrator(factories.create_organization())


@pytest.fixture
def beat(monkeypatch):
    """Return a scheduler that leaves the test's own connection open."""
    monkeypatch.setattr("django_celery_beat.schedulers.close_old_connections", lambda: None)
    made = BonobotScheduler(app)
    assert made.schedule  # read, as by the first tick of one that leads
    yield made
    made._finalize.cancel()  # it would write at the end of the process, where no table is left


def row(name):
    return PeriodicTask.objects.select_related("interval").get(name=name)


def found():
    return {
        one.name: compute_period_s(one) for one in PeriodicTask.objects.select_related("interval")
    }


def test_the_schedules_are_created_once(django_assert_max_num_queries):
    sync_schedules(CODE)
    made = set(PeriodicTask.objects.values_list("pk", flat=True))
    with django_assert_max_num_queries(3):
        sync_schedules(CODE)
    assert set(PeriodicTask.objects.values_list("pk", flat=True)) == made
    assert found() == {"sweep": 10, "prune": 3600}
    assert IntervalSchedule.objects.count() == 2


def test_an_edited_schedule_is_kept_and_recorded(boss):
    sync_schedules(CODE)
    save_schedule(boss, row("prune"), every=60, enabled=False)
    sync_schedules(CODE)
    assert (compute_period_s(row("prune")), row("prune").enabled) == (60, False)
    assert AuditRow.objects.filter(action="schedule_changed").count() == 1


def test_a_new_default_applies_to_schedules_that_werent_edited(boss):
    sync_schedules(CODE)
    save_schedule(boss, row("sweep"), every=20, enabled=True)
    faster = {name: entry | {"schedule": 5.0} for name, entry in CODE.items()}
    sync_schedules(faster)
    assert found() == {"sweep": 20, "prune": 5}
    assert read_default_period_s(row("sweep")) == 5


def test_removed_schedules_are_deleted_and_others_kept():
    sync_schedules(CODE)
    PeriodicTask.objects.create(
        name="theirs", task="elsewhere.tasks.any", interval=row("sweep").interval
    )
    sync_schedules({"sweep": CODE["sweep"]})
    assert set(found()) == {"sweep", "theirs"}


@pytest.mark.parametrize(
    "broken",
    [
        {"enabled": False},
        {"one_off": True},
        {"task": "agents.tasks.gone"},
        {"args": "[1]"},
        {"headers": "no json"},
    ],
)
def test_the_session_recovery_schedule_is_always_restored(broken):
    sync_schedules(CODE)
    PeriodicTask.objects.filter(name="sweep").update(**broken)
    sync_schedules(CODE)
    sweep = row("sweep")
    assert (sweep.enabled, sweep.one_off, sweep.task) == (True, False, "agents.tasks.sweep")
    assert (sweep.args, compute_period_s(sweep), read_default_period_s(sweep)) == ("[]", 10, 10)


def test_schedules_of_another_kind_or_too_slow_are_restored():
    sync_schedules(CODE)
    yearly = CrontabSchedule.objects.create(month_of_year="1")
    PeriodicTask.objects.filter(name="sweep").update(crontab=yearly, interval=None)
    sync_schedules(CODE)
    assert (compute_period_s(row("sweep")), row("sweep").crontab) == (10, None)
    slow = IntervalSchedule.objects.create(every=1, period="days")
    PeriodicTask.objects.filter(name="sweep").update(interval=slow)
    sync_schedules(CODE)
    assert compute_period_s(row("sweep")) == 10


@pytest.mark.parametrize(
    ("name", "said", "code"),
    [
        ("sweep", {"every": 10, "enabled": False}, "schedule_essential"),
        ("sweep", {"every": 61, "enabled": True}, "invalid"),
        ("prune", {"every": 0, "enabled": True}, "invalid"),
    ],
)
def test_disabling_an_essential_schedule_is_refused(boss, name, said, code):
    sync_schedules(CODE)
    with pytest.raises(Problem) as raised:
        save_schedule(boss, row(name), **said)
    assert raised.value.code == code
    assert row(name).enabled


def test_only_a_platform_administrator_edits_schedules():
    sync_schedules(CODE)
    owner = factories.create_member(factories.create_organization(), Role.OWNER)
    with pytest.raises(Problem) as raised:
        save_schedule(owner, row("prune"), every=60, enabled=True)
    assert raised.value.code == "forbidden"


@pytest.mark.parametrize("every", [1, 2, 7, 60, 86_400])
def test_a_message_expires_before_the_next_one(boss, every):
    sync_schedules(CODE)
    save_schedule(boss, row("prune"), every=every, enabled=True)
    sync_schedules(CODE)
    assert row("prune").expire_seconds <= max(every * 0.9, 1)


def test_everything_essential_is_scheduled_often_enough():
    entries = schedules.get_scheduled_entries()
    assert all(
        entries[name]["schedule"] <= longest for name, longest in MAX_ESSENTIAL_PERIODS.items()
    )


def test_the_scheduler_sends_the_stored_schedules(boss, beat):
    assert set(beat.schedule) == set(schedules.get_scheduled_entries())
    save_schedule(boss, row("prune notifications"), every=5, enabled=True)
    save_schedule(boss, row("watch budgets"), every=60, enabled=False)
    changed = beat.schedule
    assert changed["prune notifications"].schedule.run_every.total_seconds() == 5
    assert "watch budgets" not in changed


def test_the_scheduler_writes_only_its_own_columns(boss, beat):
    entry = beat.schedule["prune notifications"]
    save_schedule(boss, row("prune notifications"), every=5, enabled=False)
    beat.reserve(entry)
    entry.save()
    after = row("prune notifications")
    assert (compute_period_s(after), after.enabled, after.total_run_count) == (5, False, 1)


def test_the_scheduler_survives_an_unavailable_database(beat, monkeypatch):
    before = set(beat.schedule)

    def away(_entries):
        raise OperationalError("refused")

    monkeypatch.setattr("bonobot.jobs.celery_beat.sync_schedules", away)
    assert set(beat.all_as_schedule()) == before
    fresh = BonobotScheduler(app)  # it has none to go by
    with pytest.raises(OperationalError):
        _ = fresh.schedule
    fresh._finalize.cancel()


def test_doctor_detects_the_scheduler_by_its_last_run(boss):
    assert states() == {"schedule": "warning"}
    sync_schedules(schedules.get_scheduled_entries())
    PeriodicTask.objects.filter(name="sweep").update(last_run_at=timezone.now())
    assert states() == {"schedule": "ok"}
    save_schedule(boss, row("watch budgets"), every=60, enabled=False)
    long_ago = timezone.now() - timedelta(minutes=5)
    PeriodicTask.objects.filter(name="sweep").update(last_run_at=long_ago)
    assert states() == {"schedule": "failed", "disabled": "warning"}


def states():
    return {finding.name: finding.state for finding in settings_check.inspect_schedule()}


def test_the_page_is_editable_only_for_platform_administrators():
    acme = factories.create_organization()
    root, owner = admin_client.sit(acme, None), admin_client.sit(acme, Role.OWNER)
    name = "django_celery_beat_periodictask"
    assert "No schedules yet" in root.get(f"{name}_changelist")
    sync_schedules(schedules.get_scheduled_entries())
    page = admin_client.words(root.get(f"{name}_changelist"))
    assert "Resume sessions and replays that no worker is running" in page
    pk = row("prune notifications").pk
    root.post(f"{name}_change", pk, every="7200")
    assert (compute_period_s(row("prune notifications")), row("prune notifications").enabled) == (
        7200,
        False,
    )
    sweep = row("sweep").pk
    assert "(invalid)" in root.post(f"{name}_change", sweep, every="600")
    assert compute_period_s(row("sweep")) == 10
    owner.get(f"{name}_changelist", status=403)
    owner.post(f"{name}_change", pk, every="1", status=403)
