"""What an installation has and lacks, each finding with what to do about it.

`bonobot doctor` and the admin's settings check show it.
"""

from collections.abc import Callable, Iterator

from django.db import DatabaseError

from bonobot.diagnosis.dependencies import (
    broker,
    clock,
    database,
    issuers,
    memory_of_redis,
    schedule,
    secrets,
    watching,
)
from bonobot.diagnosis.findings import Finding, State
from bonobot.diagnosis.machine import (
    boxes,
    folder,
    isolation,
    launchers,
    packages,
    python,
    sandbox,
    sandbox_of_servers,
    stdio_configuration,
)

__all__ = ["Finding", "State", "diagnose"]

LOOKS: tuple[Callable[[], Iterator[Finding]], ...] = (
    python,
    packages,
    folder,
    database,
    secrets,
    clock,
    broker,
    memory_of_redis,
    schedule,
    watching,
    issuers,
    launchers,
    isolation,
    sandbox_of_servers,
    stdio_configuration,
    boxes,
    sandbox,
)
OF_ROWS = (secrets, clock, schedule, watching, issuers)


def diagnose() -> Iterator[Finding]:
    """Yield the findings, in the order in which one would repair them."""
    away = False
    for look in LOOKS:
        if away and look in OF_ROWS:
            continue  # each would wait for the database as long as `database` did
        try:
            for finding in look():
                away = away or (finding.name, finding.state) == ("database", "failed")
                yield finding
        except DatabaseError:
            if look not in OF_ROWS:
                raise
            away = True
