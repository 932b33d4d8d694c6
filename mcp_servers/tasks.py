"""Celery tasks of the registry: they carry ids and hand over to the process's one loop."""

import logging
from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.utils import timezone

from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers import asking, outages, outputs, staleness
from mcp_servers.discovery import discover
from mcp_servers.health import SYSTEM, check_all, claim_due
from mcp_servers.models import Check
from mcp_servers.oauth.leavers import forget_leavers
from mcp_servers.rereading import take_up
from mcp_servers.rescanning import rescan

logger = logging.getLogger(__name__)

HISTORY_KEPT = timedelta(days=30)


@shared_task
def check_due() -> int:
    """Check every server whose time has come; return how many.

    Those whose catalogue was marked as out of date, and read by nobody, are read again too.
    """
    claimed = claim_due()
    if claimed:
        runtime().spawn(check_all(claimed), name="health checks")
    if stale := staleness.forgotten():
        runtime().spawn(take_up(stale), name="read stale catalogues again")
    return len(claimed)


@shared_task
def discover_server(server_id: str) -> None:
    """Discover one server; a failure is on its row, not in the queue."""

    async def run() -> None:
        try:
            await discover(UUID(server_id), actor=SYSTEM)
        except Problem as problem:
            logger.warning("discovery of server %s failed: %s", server_id, problem.code)

    runtime().spawn(run(), name=f"discover {server_id}")


@shared_task
def rescan_definitions() -> None:
    """Have definitions that were read with older rules read again, beside everything else."""
    runtime().spawn(rescan(), name="read definitions again")


@shared_task
def forget_who_left() -> int:
    """Delete and withdraw the tokens of people who left; return how many grants."""
    return forget_leavers()


@shared_task
def prune_checks() -> int:
    """Delete health history: checks and outages after thirty days, error output after a week."""
    old = Check.objects.filter(created_at__lt=timezone.now() - HISTORY_KEPT)
    stretches = outages.prune(HISTORY_KEPT) + asking.prune(HISTORY_KEPT)
    return int(old.delete()[0]) + stretches + outputs.prune()
