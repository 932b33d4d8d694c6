"""Celery tasks of servers; most start a coroutine on the process's event loop."""

import logging
from uuid import UUID

from celery import shared_task
from django.conf import settings

from bonobot.core.concurrency_limits import get_concurrency_limit
from bonobot.core.exclusive_task import ExclusiveTask
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers import bulk_jobs, refresh_definitions, stderr_log
from mcp_servers.discovery import ServerRemoved, run_discovery
from mcp_servers.health import check_servers, retention
from mcp_servers.import_export.import_drafts import prune_drafts
from mcp_servers.models import BulkJob
from mcp_servers.oauth_client import revocation
from mcp_servers.scanning.rescan_definitions import scan_outdated_definitions

logger = logging.getLogger(__name__)


@shared_task(base=ExclusiveTask)
def check_due_servers() -> None:
    """Check all servers that are due, and continue abandoned discoveries and bulk jobs."""
    get_runtime().spawn(check_servers.check_due_servers(), name="health checks")
    if abandoned_servers := refresh_definitions.list_abandoned_servers():
        get_runtime().spawn(
            refresh_definitions.refresh_abandoned_servers(abandoned_servers),
            name="abandoned discoveries",
        )
    for job_id in bulk_jobs.list_abandoned_jobs():
        get_runtime().spawn(bulk_jobs.run_bulk_job(job_id), name=f"bulk job {job_id}")


@shared_task
def run_bulk_job(job_id: str) -> None:
    """Run a bulk job; a repeated message does nothing."""
    get_runtime().spawn(bulk_jobs.run_bulk_job(UUID(job_id)), name=f"bulk job {job_id}")


@shared_task
def discover_server(server_id: str) -> None:
    """Discover one server, a few at the same time; failures are stored on the server."""
    get_runtime().spawn(_discover_server(UUID(server_id)), name=f"discover {server_id}")


async def _discover_server(server_id: UUID) -> None:
    try:
        async with get_concurrency_limit("discovery"):
            await run_discovery(
                server_id, actor=check_servers.SYSTEM, install_wait_s=settings.BONOBOT_INSTALL_S
            )
    except ServerRemoved:
        logger.info("server %s was removed before it was discovered", server_id)
    except Problem as problem:
        logger.warning("discovery of server %s failed: %s", server_id, problem.code)


@shared_task(base=ExclusiveTask)
def rescan_definitions() -> None:
    """Rescan definitions that were scanned with older rules, in the background."""
    get_runtime().spawn(scan_outdated_definitions(), name="rescan definitions")


@shared_task(base=ExclusiveTask)
def revoke_former_members() -> int:
    """Delete and revoke the tokens of former members; return how many grants."""
    return revocation.revoke_former_members()


@shared_task(base=ExclusiveTask)
def prune_health_history() -> int:
    """Delete health history: checks and outages after 30 days, error output after 7 days.

    Also delete old bulk jobs and expired drafts of imports.
    """
    prune_drafts()
    BulkJob.objects.filter(finished_at__lt=retention.compute_oldest_kept()).delete()
    return retention.delete_old_history() + stderr_log.prune_error_outputs()
