"""Measure the maintenance of a large organization: pruning audit rows, and rebuilding day sums.

All changes are rolled back and the tables vacuumed, so that the measurement can be repeated.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any
from uuid import UUID

STEPS, DAYS = 9, 3


def measure_upkeep(organization_id: UUID) -> Iterator[tuple[str, float, float]]:
    """Yield titles with the median and maximum of seconds."""
    from django.db import connection
    from django.utils import timezone

    from bonobot.ledger.audit import prune_chain
    from bonobot.ledger.models import Rollup
    from bonobot.ledger.usage import build_rollups

    now = timezone.now()
    elapsed = measure_times([lambda: prune_chain._prune_batch(organization_id, now, None)] * STEPS)
    yield "1,000 audit entries leave: median; slowest", median(elapsed), max(elapsed)
    complete = Rollup.objects.filter(organization_id=organization_id, grain="day", begins__lt=now)
    days = complete.order_by("-begins").values_list("begins", flat=True).distinct()[1 : DAYS + 1]
    elapsed = measure_times(
        [partial(build_rollups._rebuild_day_summaries, organization_id, day) for day in days]
    )
    yield "a day summed anew, with its hours: median; slowest", median(elapsed), max(elapsed)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            cursor.execute("VACUUM ledger_summary, ledger_auditrow")


def measure_times(actions: list[Callable[[], Any]]) -> list[float]:
    from django.db import transaction

    times = []
    with transaction.atomic():
        for action in actions:
            started_at = time.perf_counter()
            action()
            times.append(time.perf_counter() - started_at)
        transaction.set_rollback(True)
    return times
