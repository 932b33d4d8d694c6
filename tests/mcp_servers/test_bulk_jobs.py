"""Rounds: a deed upon many servers, carried out once each, by whoever is alive to do it."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden
from bonobot.core.runtime import get_runtime
from mcp_servers import bulk_jobs
from mcp_servers.models import BulkJob, BulkJobItem, Definition, Server
from mcp_servers.tasks import carry_out_round, prune_checks
from tests import admin_client, factories
from tests.wait import eventually

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def ann(acme: Organization) -> Principal:
    return factories.create_member(acme, Role.OWNER, "ann")


@pytest.fixture
def servers(acme: Organization) -> list[Server]:
    return [admin_client.web_server(acme, f"web{number}") for number in range(5)]


def go(made: BulkJob) -> BulkJob:
    get_runtime().call(bulk_jobs.run_bulk_job, made.pk)
    made.refresh_from_db()
    return made


def states(made: BulkJob) -> dict[str, int]:
    ((_made, counts),) = bulk_jobs.count_items(BulkJob.objects.filter(pk=made.pk))
    return {state: n for state, n in counts.items() if n}


def test_each_server_is_done_and_a_failure_disturbs_no_other(
    ann: Principal, servers: list[Server]
) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    servers[2].delete()
    go(made)
    assert states(made) == {"total": 5, "done": 4, "failed": 1}
    assert made.finished_at is not None
    assert made.stops.get(state="failed").code == "not_found"
    assert not Server.objects.enabled().exists()


def test_servers_are_asked_and_what_fails_says_why(ann: Principal, servers: list[Server]) -> None:
    made = go(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.TEST, servers))
    assert states(made) == {"total": 5, "failed": 5}
    assert set(made.stops.values_list("code", flat=True)) == {"server_unreachable"}
    assert all(made.stops.values_list("detail", flat=True))


def test_exactly_what_was_shown_is_approved(ann: Principal, servers: list[Server]) -> None:
    row, other = admin_client.offer(servers[0], "add"), admin_client.offer(servers[1], "sub")
    seen = {servers[0].pk: {str(row.pk): row.digest}, servers[1].pk: {str(other.pk): "0" * 64}}
    go(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.APPROVE, servers, seen))
    assert [one.name for one in Definition.objects.callable()] == ["add"]


def test_removed_servers_are_told_by_their_names(ann: Principal, servers: list[Server]) -> None:
    made = go(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.REMOVE, servers))
    assert not Server.objects.exists()
    assert made.stops.first().server_name == "web0"


def test_a_message_that_comes_twice_does_nothing_the_second_time(
    ann: Principal, servers: list[Server]
) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    BulkJob.objects.filter(pk=made.pk).update(held_until=timezone.now() + bulk_jobs.LEASE)
    go(made)
    assert states(made) == {"total": 5, "waiting": 5}
    assert not bulk_jobs.list_abandoned_jobs()


def test_a_round_whose_worker_died_is_taken_up(ann: Principal, servers: list[Server]) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    BulkJob.objects.filter(pk=made.pk).update(held_until=timezone.now() - timedelta(seconds=1))
    made.stops.filter(server_id=servers[0].pk).update(state=BulkJobItem.State.RUNNING)
    assert bulk_jobs.list_abandoned_jobs() == [made.pk]
    go(made)
    assert states(made) == {"total": 5, "done": 5}
    assert not bulk_jobs.list_abandoned_jobs()


def test_who_lost_the_right_meanwhile_does_nothing(
    acme: Organization, ann: Principal, servers: list[Server]
) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    Membership.objects.filter(user_id=ann.id).update(role=Role.AUDITOR)
    go(made)
    assert states(made) == {"total": 5, "failed": 5}
    assert Server.objects.enabled().count() == 5


def test_who_may_not_do_one_begins_none(acme: Organization, servers: list[Server]) -> None:
    auditor = factories.create_member(acme, Role.AUDITOR)
    with pytest.raises(Forbidden):
        bulk_jobs.start_bulk_job(auditor, BulkJob.Kind.DISABLE, servers)
    operator = factories.create_member(acme, Role.OPERATOR)
    with pytest.raises(Forbidden):
        bulk_jobs.start_bulk_job(operator, BulkJob.Kind.APPROVE, servers)
    assert not BulkJob.objects.exists()


def test_the_task_carries_it_out(ann: Principal, servers: list[Server]) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    carry_out_round(str(made.pk))
    eventually(lambda: BulkJob.objects.get(pk=made.pk).finished_at)
    assert states(made) == {"total": 5, "done": 5}


def test_old_rounds_go(ann: Principal, servers: list[Server]) -> None:
    made = go(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers))
    BulkJob.objects.filter(pk=made.pk).update(finished_at=timezone.now() - timedelta(days=31))
    prune_checks()
    assert not BulkJob.objects.exists()
    assert not BulkJobItem.objects.exists()


def test_the_list_begins_a_round_and_leads_to_it(
    acme: Organization, ann: Principal, servers: list[Server]
) -> None:
    seat = admin_client.Desk(User.objects.get(username="ann"))
    fields = {"action": "refresh_chosen", "_selected_action": [str(one.pk) for one in servers]}
    page = seat.post("mcp_servers_server_changelist", **fields)
    assert "0 of 5 servers done" in admin_client.words(page)
    assert "0 of 5 servers done" in admin_client.words(seat.get("mcp_servers_server_changelist"))
    made = BulkJob.objects.get()
    go(made)
    page = seat.get("mcp_servers_server_round", made.pk)
    assert "5 of 5 servers done 5 failed" in admin_client.words(page)
    assert "View progress" not in seat.get("mcp_servers_server_changelist")
    stranger = admin_client.sit(factories.create_organization("evil"), Role.OWNER)
    stranger.get("mcp_servers_server_round", made.pk, status=404)


def test_what_failed_is_done_again_and_nothing_else(ann: Principal, servers: list[Server]) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    made.stops.filter(server_id=servers[0].pk).update(state=BulkJobItem.State.FAILED)
    go(made)
    again = bulk_jobs.retry_failed_items(ann, made)
    assert [stop.server_name for stop in again.stops.all()] == ["web0"]
    assert states(go(again)) == {"total": 1, "done": 1}
    with pytest.raises(Conflict) as refused:
        bulk_jobs.retry_failed_items(ann, again)
    assert refused.value.code == "nothing_failed"


def test_a_round_that_nobody_goes_says_so(ann: Principal, servers: list[Server]) -> None:
    made = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    assert not bulk_jobs.is_stalled(made)
    made.created_at -= bulk_jobs.PICKUP_LIMIT
    assert bulk_jobs.is_stalled(made)
    assert not bulk_jobs.is_stalled(go(made))
