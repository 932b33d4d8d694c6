"""Schedules: rows follow the code, edits are kept, essential schedules can't be stopped."""

from datetime import timedelta

import pytest
from django.db import OperationalError
from django.utils import timezone
from django_celery_beat.models import CrontabSchedule, IntervalSchedule, PeriodicTask

from agents import doctor_checks
from bonobot.accounts.roles import Role
from bonobot.celery import app
from bonobot.core.problems import Problem
from bonobot.jobs import schedules
from bonobot.jobs.celery_beat import BonobotScheduler, LeaderLease
from bonobot.jobs.schedules import (
    MAX_ESSENTIAL_PERIODS,
    compute_period_s,
    read_default_period_s,
    save_schedule,
    sync_schedules,
)
from bonobot.ledger.models import AuditRow
from bonobot.settings.scheduled_tasks import build_default_schedule
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
CODE = {
    "sweep": {"task": "agents.tasks.sweep", "schedule": 10.0, "options": {"expires": 9}},
    "prune": {"task": "mcp_servers.tasks.prune_health_history", "schedule": 3600.0},
}


def test_each_schedule_has_a_label():
    assert build_default_schedule(with_oauth=True).keys() == schedules.SCHEDULE_LABELS.keys()


@pytest.fixture
def administrator():
    return factories.build_administrator(factories.create_organization())


@pytest.fixture
def scheduler(monkeypatch):
    """Return a scheduler that leaves the test's own connection open."""
    monkeypatch.setattr("django_celery_beat.schedulers.close_old_connections", lambda: None)
    instance = BonobotScheduler(app)
    assert instance.schedule  # read, as by the first tick of a leader
    yield instance
    instance._finalize.cancel()  # it would write when the process ends and the tables are gone


def get_schedule(name):
    return PeriodicTask.objects.select_related("interval").get(name=name)


def list_periods():
    return {
        task.name: compute_period_s(task)
        for task in PeriodicTask.objects.select_related("interval")
    }


def test_the_schedules_are_created_once(django_assert_max_num_queries):
    sync_schedules(CODE)
    ids = set(PeriodicTask.objects.values_list("pk", flat=True))
    with django_assert_max_num_queries(3):
        sync_schedules(CODE)
    assert set(PeriodicTask.objects.values_list("pk", flat=True)) == ids
    assert list_periods() == {"sweep": 10, "prune": 3600}
    assert IntervalSchedule.objects.count() == 2


def test_an_edited_schedule_is_kept_and_recorded(administrator):
    sync_schedules(CODE)
    save_schedule(administrator, get_schedule("prune"), period_s=60, enabled=False)
    sync_schedules(CODE)
    assert (compute_period_s(get_schedule("prune")), get_schedule("prune").enabled) == (60, False)
    assert AuditRow.objects.filter(action="schedule_updated").count() == 1


def test_a_new_default_applies_to_schedules_that_werent_edited(administrator):
    sync_schedules(CODE)
    save_schedule(administrator, get_schedule("sweep"), period_s=20, enabled=True)
    faster = {name: entry | {"schedule": 5.0} for name, entry in CODE.items()}
    sync_schedules(faster)
    assert list_periods() == {"sweep": 20, "prune": 5}
    assert read_default_period_s(get_schedule("sweep")) == 5


def test_removed_schedules_are_deleted_and_others_kept():
    sync_schedules(CODE)
    PeriodicTask.objects.create(
        name="theirs", task="elsewhere.tasks.any", interval=get_schedule("sweep").interval
    )
    sync_schedules({"sweep": CODE["sweep"]})
    assert set(list_periods()) == {"sweep", "theirs"}


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
    sweep = get_schedule("sweep")
    assert (sweep.enabled, sweep.one_off, sweep.task) == (True, False, "agents.tasks.sweep")
    assert (sweep.args, compute_period_s(sweep), read_default_period_s(sweep)) == ("[]", 10, 10)


def test_schedules_of_another_kind_or_too_slow_are_restored():
    sync_schedules(CODE)
    yearly = CrontabSchedule.objects.create(month_of_year="1")
    PeriodicTask.objects.filter(name="sweep").update(crontab=yearly, interval=None)
    sync_schedules(CODE)
    assert (compute_period_s(get_schedule("sweep")), get_schedule("sweep").crontab) == (10, None)
    slow = IntervalSchedule.objects.create(every=1, period="days")
    PeriodicTask.objects.filter(name="sweep").update(interval=slow)
    sync_schedules(CODE)
    assert compute_period_s(get_schedule("sweep")) == 10


@pytest.mark.parametrize(
    ("name", "fields", "code"),
    [
        ("sweep", {"period_s": 10, "enabled": False}, "schedule_essential"),
        ("sweep", {"period_s": 61, "enabled": True}, "invalid"),
        ("prune", {"period_s": 0, "enabled": True}, "invalid"),
    ],
)
def test_disabling_an_essential_schedule_is_refused(administrator, name, fields, code):
    sync_schedules(CODE)
    with pytest.raises(Problem) as raised:
        save_schedule(administrator, get_schedule(name), **fields)
    assert raised.value.code == code
    assert get_schedule(name).enabled


def test_only_a_platform_administrator_edits_schedules():
    sync_schedules(CODE)
    owner = factories.create_member(factories.create_organization(), Role.OWNER)
    with pytest.raises(Problem) as raised:
        save_schedule(owner, get_schedule("prune"), period_s=60, enabled=True)
    assert raised.value.code == "forbidden"


@pytest.mark.parametrize("every", [1, 2, 7, 60, 86_400])
def test_a_message_expires_before_the_next_one(administrator, every):
    sync_schedules(CODE)
    save_schedule(administrator, get_schedule("prune"), period_s=every, enabled=True)
    sync_schedules(CODE)
    assert get_schedule("prune").expire_seconds <= max(every * 0.9, 1)


def test_everything_essential_is_scheduled_often_enough():
    entries = schedules.get_scheduled_entries()
    assert all(
        entries[name]["schedule"] <= longest for name, longest in MAX_ESSENTIAL_PERIODS.items()
    )


def test_the_scheduler_sends_the_stored_schedules(administrator, scheduler):
    assert set(scheduler.schedule) == set(schedules.get_scheduled_entries())
    save_schedule(administrator, get_schedule("prune notifications"), period_s=5, enabled=True)
    save_schedule(administrator, get_schedule("watch budgets"), period_s=60, enabled=False)
    changed = scheduler.schedule
    assert changed["prune notifications"].schedule.run_every.total_seconds() == 5
    assert "watch budgets" not in changed


def test_the_scheduler_writes_only_its_own_columns(administrator, scheduler):
    entry = scheduler.schedule["prune notifications"]
    save_schedule(administrator, get_schedule("prune notifications"), period_s=5, enabled=False)
    scheduler.reserve(entry)
    entry.save()
    after = get_schedule("prune notifications")
    assert (compute_period_s(after), after.enabled, after.total_run_count) == (5, False, 1)


def test_the_scheduler_survives_an_unavailable_database(scheduler, monkeypatch):
    before = set(scheduler.schedule)

    def fail(_entries):
        raise OperationalError("refused")

    monkeypatch.setattr("bonobot.jobs.celery_beat.sync_schedules", fail)
    assert set(scheduler.all_as_schedule()) == before
    new_scheduler = BonobotScheduler(app)  # it has no previous schedules
    with pytest.raises(OperationalError):
        _ = new_scheduler.schedule
    new_scheduler._finalize.cancel()


def test_doctor_detects_the_scheduler_by_its_last_run(administrator):
    assert list_states() == {"schedule": "warning"}
    assert LeaderLease("beat").renew()
    assert list_states() == {"schedule": "ok"}
    sync_schedules(schedules.get_scheduled_entries())
    PeriodicTask.objects.filter(name="sweep").update(last_run_at=timezone.now())
    assert list_states() == {"schedule": "ok"}
    save_schedule(administrator, get_schedule("watch budgets"), period_s=60, enabled=False)
    long_ago = timezone.now() - timedelta(minutes=5)
    PeriodicTask.objects.filter(name="sweep").update(last_run_at=long_ago)
    assert list_states() == {"schedule": "failed", "disabled": "warning"}


def list_states():
    return {finding.name: finding.state for finding in doctor_checks.inspect_schedule()}


def test_the_page_is_editable_only_for_platform_administrators():
    acme = factories.create_organization()
    root, owner = admin_client.sign_in(acme, None), admin_client.sign_in(acme, Role.OWNER)
    name = "django_celery_beat_periodictask"
    assert "No schedules yet" in root.get(f"{name}_changelist")
    sync_schedules(schedules.get_scheduled_entries())
    page = admin_client.get_text(root.get(f"{name}_changelist"))
    assert "Resume sessions and replays that no worker is running" in page
    pk = get_schedule("prune notifications").pk
    root.post(f"{name}_change", pk, every="7200")
    assert (
        compute_period_s(get_schedule("prune notifications")),
        get_schedule("prune notifications").enabled,
    ) == (
        7200,
        False,
    )
    sweep = get_schedule("sweep").pk
    assert "The interval is 600 s." in root.post(f"{name}_change", sweep, every="600")
    assert compute_period_s(get_schedule("sweep")) == 10
    owner.get(f"{name}_changelist", status=403)
    owner.post(f"{name}_change", pk, every="1", status=403)
