"""Bulk jobs: an operation on many servers, run once for each, even if a worker dies."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.models import Deletion, Membership, Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Conflict, Forbidden
from bonobot.core.runtime import get_runtime
from mcp_servers import bulk_jobs
from mcp_servers.models import BulkJob, BulkJobItem, Definition, Server
from mcp_servers.services import set_server_enabled
from mcp_servers.tasks import prune_health_history, run_bulk_job
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
    return [admin_client.create_web_server(acme, f"web{number}") for number in range(5)]


def run_job(job: BulkJob) -> BulkJob:
    get_runtime().call(bulk_jobs.run_bulk_job, job.pk)
    job.refresh_from_db()
    return job


def states(job: BulkJob) -> dict[str, int]:
    ((_job, counts),) = bulk_jobs.count_items(BulkJob.objects.filter(pk=job.pk))
    return {state: n for state, n in counts.items() if n}


def test_a_bulk_job_continues_after_a_failing_server(ann: Principal, servers: list[Server]) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    servers[2].delete()
    run_job(job)
    assert states(job) == {"total": 5, "done": 4, "failed": 1}
    assert job.finished_at is not None
    assert job.items.get(state="failed").code == "not_found"
    assert not Server.objects.enabled().exists()


def test_servers_are_tested_and_failures_have_a_reason(
    ann: Principal, servers: list[Server]
) -> None:
    job = run_job(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.TEST, servers))
    assert states(job) == {"total": 5, "failed": 5}
    assert set(job.items.values_list("code", flat=True)) == {"server_unreachable"}
    assert all(job.items.values_list("detail", flat=True))


def test_exactly_the_shown_definitions_are_approved(ann: Principal, servers: list[Server]) -> None:
    row, other = (
        admin_client.declare_tool(servers[0], "add"),
        admin_client.declare_tool(servers[1], "sub"),
    )
    digests = {servers[0].pk: {str(row.pk): row.digest}, servers[1].pk: {str(other.pk): "0" * 64}}
    job = run_job(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.APPROVE, servers, digests))
    assert [definition.name for definition in Definition.objects.callable()] == ["add"]
    changed, *details = [item.detail for item in job.items.order_by("-code", "server_name")]
    assert "None of these definitions could be approved" in changed
    assert details == ["1 approved.", *["0 approved."] * (len(servers) - 2)]


def test_a_bulk_approval_says_how_many_definitions_are_still_pending(
    ann: Principal, servers: list[Server]
) -> None:
    row, _other = (admin_client.declare_tool(servers[0], name) for name in ("add", "sub"))
    digests = {servers[0].pk: {str(row.pk): row.digest}}
    job = run_job(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.APPROVE, servers[:1], digests))
    assert job.items.get().detail == "1 approved, 1 still pending review."


def test_deleted_servers_are_listed_by_name(ann: Principal, servers: list[Server]) -> None:
    job = run_job(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.REMOVE, servers))
    assert not Server.objects.exists()
    assert job.items.first().server_name == "web0"


def test_a_server_that_was_changed_after_the_start_isnt_deleted(
    ann: Principal, servers: list[Server]
) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.REMOVE, servers)
    set_server_enabled(ann, servers[2], enabled=False)
    run_job(job)
    assert states(job) == {"total": 5, "done": 4, "failed": 1}
    assert job.items.get(state="failed").code == "version_conflict"
    assert list(Server.objects.all()) == [servers[2]]
    assert states(run_job(bulk_jobs.retry_failed_items(ann, job)))["done"] == 1


def test_a_duplicate_message_does_nothing(ann: Principal, servers: list[Server]) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    BulkJob.objects.filter(pk=job.pk).update(lease_expires_at=timezone.now() + bulk_jobs.LEASE)
    run_job(job)
    assert states(job) == {"total": 5, "waiting": 5}
    assert not bulk_jobs.list_abandoned_jobs()


def test_a_bulk_job_whose_worker_died_is_continued(ann: Principal, servers: list[Server]) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    BulkJob.objects.filter(pk=job.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    job.items.filter(server_id=servers[0].pk).update(state=BulkJobItem.State.RUNNING)
    assert bulk_jobs.list_abandoned_jobs() == [job.pk]
    run_job(job)
    assert states(job) == {"total": 5, "done": 5}
    assert not bulk_jobs.list_abandoned_jobs()


def test_a_person_who_lost_the_permission_changes_nothing(
    acme: Organization, ann: Principal, servers: list[Server]
) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    Membership.objects.filter(user_id=ann.id).update(role=Role.AUDITOR)
    run_job(job)
    assert states(job) == {"total": 5, "failed": 5}
    assert Server.objects.enabled().count() == 5


def test_a_person_without_permission_cant_start_a_bulk_job(
    acme: Organization, servers: list[Server]
) -> None:
    auditor = factories.create_member(acme, Role.AUDITOR)
    with pytest.raises(Forbidden):
        bulk_jobs.start_bulk_job(auditor, BulkJob.Kind.DISABLE, servers)
    operator = factories.create_member(acme, Role.OPERATOR)
    with pytest.raises(Forbidden):
        bulk_jobs.start_bulk_job(operator, BulkJob.Kind.APPROVE, servers)
    assert not BulkJob.objects.exists()


def test_the_task_runs_the_bulk_job(ann: Principal, servers: list[Server]) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    run_bulk_job(str(job.pk))
    eventually(lambda: BulkJob.objects.get(pk=job.pk).finished_at)
    assert states(job) == {"total": 5, "done": 5}


def test_old_bulk_jobs_are_deleted(ann: Principal, servers: list[Server]) -> None:
    job = run_job(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers))
    BulkJob.objects.filter(pk=job.pk).update(finished_at=timezone.now() - timedelta(days=31))
    prune_health_history()
    assert not BulkJob.objects.exists()
    assert not BulkJobItem.objects.exists()


def test_the_server_list_starts_a_bulk_job_and_opens_its_page(
    acme: Organization, ann: Principal, servers: list[Server]
) -> None:
    browser = admin_client.AdminClient(User.objects.get(username="ann"))
    fields = {
        "action": "refresh_chosen",
        "_selected_action": [str(server.pk) for server in servers],
    }
    page = browser.post("mcp_servers_server_changelist", **fields)
    assert "0 of 5 servers done" in admin_client.get_text(page)
    assert "<h2>Refresh 5 servers</h2>" in page
    assert "<title>" in page
    assert "Refresh 5 servers · Servers" in " ".join(page.split())
    assert "0 of 5 servers done" in admin_client.get_text(
        browser.get("mcp_servers_server_changelist")
    )
    job = BulkJob.objects.get()
    run_job(job)
    text = admin_client.get_text(browser.get("mcp_servers_server_bulk_job", job.pk))
    assert "5 of 5 servers done" in text
    assert "5 failed" in text
    assert "View progress" not in browser.get("mcp_servers_server_changelist")
    stranger = admin_client.sign_in(factories.create_organization("evil"), Role.OWNER)
    stranger.get("mcp_servers_server_bulk_job", job.pk, status=404)


def test_a_finished_deletion_offers_to_restore_all_its_servers(
    acme: Organization, ann: Principal, servers: list[Server]
) -> None:
    job = run_job(bulk_jobs.start_bulk_job(ann, BulkJob.Kind.REMOVE, servers))
    owner = admin_client.AdminClient(User.objects.get(username="ann"))
    page = owner.get("mcp_servers_server_bulk_job", job.pk)
    assert "Restore 5 servers" in admin_client.get_text(page)
    assert admin_client.build_url("mcp_servers_server_change", servers[0].pk) not in page
    page = owner.post("mcp_servers_server_bulk_job", job.pk, restore="1")
    assert "5 servers restored." in page
    assert Server.objects.count() == 5
    assert admin_client.build_url("mcp_servers_server_change", servers[0].pk) in page
    assert "Restore 5 servers" not in admin_client.get_text(page)


def test_servers_that_are_deleted_within_the_request_are_restored_at_once(
    acme: Organization, ann: Principal, servers: list[Server]
) -> None:
    owner = admin_client.AdminClient(User.objects.get(username="ann"))
    fields = {
        "action": "remove_chosen",
        "confirmed": "1",
        "_selected_action": [str(server.pk) for server in servers[:2]],
    }
    page = owner.post("mcp_servers_server_changelist", **fields)
    assert "2 servers were deleted. Undo" in admin_client.get_text(page)
    assert Server.objects.count() == 3
    deletions = [str(deletion.pk) for deletion in Deletion.objects.all()]
    assert all(f'value="{pk}"' in page for pk in deletions)
    fields = {"action": "restore_chosen", "_selected_action": deletions}
    owner.post("tenancy_deletion_changelist", **fields)
    assert Server.objects.count() == 5


def test_only_failed_servers_are_retried(ann: Principal, servers: list[Server]) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    job.items.filter(server_id=servers[0].pk).update(state=BulkJobItem.State.FAILED)
    run_job(job)
    retry = bulk_jobs.retry_failed_items(ann, job)
    assert [item.server_name for item in retry.items.all()] == ["web0"]
    assert states(run_job(retry)) == {"total": 1, "done": 1}
    with pytest.raises(Conflict) as caught:
        bulk_jobs.retry_failed_items(ann, retry)
    assert caught.value.code == "nothing_failed"


def test_a_bulk_job_without_a_worker_is_reported(ann: Principal, servers: list[Server]) -> None:
    job = bulk_jobs.start_bulk_job(ann, BulkJob.Kind.DISABLE, servers)
    assert not bulk_jobs.is_stalled(job)
    job.created_at -= bulk_jobs.PICKUP_LIMIT
    assert bulk_jobs.is_stalled(job)
    assert not bulk_jobs.is_stalled(run_job(job))
