"""Celery tasks of the registry: they carry ids and hand over to the process's one loop."""

import logging
from datetime import timedelta
from uuid import UUID

from celery import shared_task
from django.conf import settings
from django.utils import timezone

from bonobot.lib.alone import Alone
from bonobot.lib.lanes import lane
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from mcp_servers import asking, outages, outputs, rounds, staleness
from mcp_servers.discovery import Removed, discover
from mcp_servers.health import SYSTEM, check_what_is_due
from mcp_servers.models import Check, Round
from mcp_servers.oauth.leavers import forget_leavers
from mcp_servers.rereading import take_up
from mcp_servers.rescanning import rescan

logger = logging.getLogger(__name__)

HISTORY_KEPT = timedelta(days=30)


@shared_task(base=Alone)
def check_due() -> None:
    """Check every server whose time has come, as many at once as there is room for.

    Those whose catalogue was marked as out of date, and read by nobody, are read again too.
    """
    runtime().spawn(check_what_is_due(), name="health checks")
    if stale := staleness.forgotten():
        runtime().spawn(take_up(stale), name="read stale catalogues again")
    for left in rounds.forgotten():
        runtime().spawn(rounds.carry_out(left), name=f"round {left}")


@shared_task
def carry_out_round(round_id: str) -> None:
    """Go a round of several servers; a message that comes twice does nothing the second time."""
    runtime().spawn(rounds.carry_out(UUID(round_id)), name=f"round {round_id}")


@shared_task
def discover_server(server_id: str) -> None:
    """Discover one server, a few beside each other; a failure is on its row, not in the queue."""

    async def run() -> None:
        try:
            async with lane("discovery"):
                await discover(UUID(server_id), actor=SYSTEM, patience_s=settings.BONOBOT_INSTALL_S)
        except Removed:
            logger.info("server %s was removed before it was discovered", server_id)
        except Problem as problem:
            logger.warning("discovery of server %s failed: %s", server_id, problem.code)

    runtime().spawn(run(), name=f"discover {server_id}")


@shared_task(base=Alone)
def rescan_definitions() -> None:
    """Have definitions that were read with older rules read again, beside everything else."""
    runtime().spawn(rescan(), name="read definitions again")


@shared_task(base=Alone)
def forget_who_left() -> int:
    """Delete and withdraw the tokens of people who left; return how many grants."""
    return forget_leavers()


@shared_task(base=Alone)
def prune_checks() -> int:
    """Delete health history: checks and outages after thirty days, error output after a week."""
    before = timezone.now() - HISTORY_KEPT
    old = Check.objects.filter(created_at__lt=before)
    Round.objects.filter(finished_at__lt=before).delete()
    stretches = outages.prune(HISTORY_KEPT) + asking.prune(HISTORY_KEPT)
    return int(old.delete()[0]) + stretches + outputs.prune()
