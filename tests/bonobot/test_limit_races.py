"""Concurrent requests don't exceed a limit, and don't leave an organization without an owner.

The first request pauses after it has counted; without a lock, the second counts the same.
"""

from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection

from agents import notes, saved_filters
from agents.access_requests import AccessRequestSpec, create_access_request
from agents.evaluation import recordings, replays
from agents.models import AccessRequest, Agent, Note, Recording, SavedFilter, Trigger
from agents.notes import NoteSpec, save_agent_note, save_note
from agents.workflows import triggers
from agents.workflows.triggers import TriggerSpec, save_trigger
from bonobot.accounts import attempt_limits
from bonobot.accounts.attempt_limits import AttemptLimit, TooManyAttempts, charge_attempt
from bonobot.accounts.members import remove_member, update_member_role
from bonobot.accounts.models import Attempts, Membership, Organization
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from tests import factories
from tests.concurrent_writers import on_postgresql, run_crossed

pytestmark = pytest.mark.django_db(transaction=True)

Settings = Any


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def helper(acme: Organization) -> Agent:
    return factories.create_agent(acme)


def catch_code(work: Callable[[], Any]) -> Callable[[], str]:
    """Return a function that does the work and returns the code of its problem, or ""."""

    def run() -> str:
        try:
            work()
        except Problem as problem:
            return problem.code
        return ""

    return run


def race(works: Callable[[int], Any], at: str = "SELECT COUNT") -> list[str]:
    """Run two works crossed; return the sorted codes of their problems."""
    return sorted(run_crossed(catch_code(lambda: works(1)), catch_code(lambda: works(2)), at=at))


@on_postgresql
def test_concurrent_access_requests_dont_exceed_the_limit(
    acme: Organization, settings: Settings
) -> None:
    settings.BONOBOT_PENDING_ACCESS_REQUESTS = 1
    member = factories.create_member(acme, Role.MEMBER, "anna")

    def request(number: int) -> None:
        create_access_request(
            member, AccessRequestSpec(kind="agent", target=f"Wish {number}", reason="x")
        )

    assert race(request) == ["", "too_many_access_requests"]
    assert AccessRequest.objects.count() == 1


@on_postgresql
def test_concurrent_filters_dont_exceed_the_limit(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_filters, "MAX_FILTERS", 1)
    owner = factories.create_member(acme, Role.OWNER, "anna")

    def save(number: int) -> None:
        saved_filters.save_filter(owner, f"Filter {number}", "outcome=denied", shared=False)

    assert race(save) == ["", "too_many_filters"]
    assert SavedFilter.objects.count() == 1


@on_postgresql
def test_concurrent_triggers_dont_exceed_the_limit(
    helper: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(triggers, "MAX_TRIGGERS", 1)
    workflow = factories.create_workflow(helper)
    administrator = factories.build_administrator(helper.organization)

    def save(number: int) -> None:
        save_trigger(administrator, workflow, TriggerSpec(name=f"t{number}", kind="webhook"))

    assert race(save) == ["", "too_many_triggers"]
    assert Trigger.objects.count() == 1


@on_postgresql
@pytest.mark.parametrize("by_agent", [True, False])
def test_concurrent_notes_dont_exceed_the_limit(
    helper: Agent, monkeypatch: pytest.MonkeyPatch, by_agent: bool
) -> None:
    monkeypatch.setattr(notes, "MAX_NOTES", 1)
    administrator = factories.build_administrator(helper.organization)

    def save(number: int) -> None:
        if by_agent:
            values: dict[str, Any] = {"labels": 0, "written_by": "x", "session_id": None}
            save_agent_note(helper.organization_id, helper.pk, f"Note {number}", "x", **values)
        else:
            save_note(administrator, helper, NoteSpec(f"Note {number}", "x"))

    assert race(save) == ["", "notes_full"]
    assert Note.objects.count() == 1


@on_postgresql
def test_concurrent_recordings_and_replays_dont_exceed_the_limit(
    helper: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recordings, "MAX_RECORDINGS", 1)
    monkeypatch.setattr(replays, "MAX_OPEN_REPLAYS", 1)
    administrator = factories.build_administrator(helper.organization)
    first, second = (factories.create_answered_session(helper) for _ in range(2))

    def record(number: int) -> None:
        recordings.create_recording(administrator, first if number == 1 else second)

    def replay(_number: int) -> None:
        overrides = replays.ReplayOverrides()
        replays.create_replay(administrator, Recording.objects.get(), overrides)

    assert race(record) == ["", "too_many_recordings"]
    assert race(replay) == ["", "too_many_replays"]


@on_postgresql
@pytest.mark.parametrize("removed", [True, False])
def test_two_owners_cant_demote_or_remove_each_other_at_once(
    acme: Organization, removed: bool
) -> None:
    owners = [factories.create_member(acme, Role.OWNER, name) for name in ("anna", "bert")]
    members = [Membership.objects.get(user__pk=owner.id) for owner in owners]

    def change(number: int) -> None:
        principal, other = owners[number - 1], members[2 - number]
        if removed:
            remove_member(principal, other)
        else:
            update_member_role(principal, other, Role.MEMBER)

    assert race(change, 'SELECT %s AS "a"') == ["", "last_owner"]
    assert Membership.objects.filter(role=Role.OWNER).count() == 1


def test_an_attempt_that_cant_be_counted_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limit, subject = AttemptLimit("test", 1_000, 60), str(uuid4())
    charge_attempt(limit, subject)
    monkeypatch.setattr(attempt_limits, "MAX_UPDATE_TRIES", 2)

    def change_in_between(execute: Callable[..., Any], sql: str, *args: Any) -> Any:
        result = execute(sql, *args)
        if sql.startswith("SELECT"):  # another attempt is counted after each look
            with connection.cursor() as cursor:
                cursor.execute(f'UPDATE "{Attempts._meta.db_table}" SET tat = tat + 1')  # noqa: S608
        return result

    with connection.execute_wrapper(change_in_between), pytest.raises(TooManyAttempts):
        charge_attempt(limit, subject)
    assert Attempts.objects.count() == 1
