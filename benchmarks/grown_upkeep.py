"""A grown organization's upkeep: the oldest rows of its audit leave, and days are summed anew.

All of it is taken back, and what that leaves in the tables is cleared away, so that the same can be
measured again.
"""

import time
from collections.abc import Callable, Iterator
from functools import partial
from statistics import median
from typing import Any
from uuid import UUID

STEPS, DAYS = 9, 3


def figures(organization_id: UUID) -> Iterator[tuple[str, float, float]]:
    """Yield what was measured: how many seconds it took in the median, and at most."""
    from django.db import connection
    from django.utils import timezone

    from bonobot.ledger.audit import retention
    from bonobot.ledger.models import Rollup
    from bonobot.ledger.usage import build_rollups

    now = timezone.now()
    took = _times([lambda: retention._prune_batch(organization_id, now, None)] * STEPS)
    yield "1,000 audit entries leave: median; slowest", median(took), max(took)
    whole = Rollup.objects.filter(organization_id=organization_id, grain="day", begins__lt=now)
    days = whole.order_by("-begins").values_list("begins", flat=True).distinct()[1 : DAYS + 1]
    took = _times(
        [partial(build_rollups._rebuild_day_summaries, organization_id, day) for day in days]
    )
    yield "a day summed anew, with its hours: median; slowest", median(took), max(took)
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("SET statement_timeout = 0")
            cursor.execute("VACUUM ledger_summary, ledger_auditrow")


def _times(actions: list[Callable[[], Any]]) -> list[float]:
    from django.db import transaction

    times = []
    with transaction.atomic():
        for action in actions:
            began = time.perf_counter()
            action()
            times.append(time.perf_counter() - began)
        transaction.set_rollback(True)
    return times
