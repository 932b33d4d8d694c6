"""`/healthz`: 503 until this process can work, 200 from then on as its sign of life.

Ready means: the database answers and has every migration. Afterwards nothing is asked any more: a
database that is away for a minute must not make an orchestrator restart every process. The answer
is given before Django's middleware, so it needs no host name, session or thread.
"""

import json
import threading
from collections.abc import Awaitable, Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db import DatabaseError, connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse

from bonobot.lib.runtime import runtime

PATH = "/healthz"
_ready = threading.Event()


def fault() -> str:
    """Return why this process isn't ready yet, blank when it is (asks the database until then)."""
    if not _ready.is_set():
        try:
            pending = unapplied()
        except DatabaseError:
            return "the database doesn't answer"
        if pending:
            return f"{pending} migrations are not applied: run `bonobot migrate`"
        _ready.set()
    return ""


def unapplied() -> int:
    """Return how many migrations the database lacks; raises DatabaseError when it is away."""
    connection.ensure_connection()
    executor = MigrationExecutor(connection)
    return len(executor.migration_plan(executor.loader.graph.leaf_nodes()))


def why_away(error: DatabaseError) -> str:
    """Return why the database is away; a pool only knows that it got no connection in time."""
    told: Exception = error
    if connection.vendor == "postgresql":
        backend: Any = connection.Database  # type: ignore[attr-defined]  # psycopg
        try:
            backend.connect(**connection.get_connection_params()).close()
        except backend.Error as cause:
            told = cause
    return " ".join(str(told).split())


@login_not_required
def healthz(request: HttpRequest) -> JsonResponse:
    """Answer under a server other than ours (`runserver`)."""
    status, body = _answer(fault())
    return JsonResponse(body, status=status, headers={"Cache-Control": "no-store"})


async def respond(send: Callable[[dict[str, Any]], Awaitable[None]]) -> None:
    """Answer an ASGI request for `/healthz`."""
    found = "" if _ready.is_set() else await runtime().orm(fault)
    status, body = _answer(found)
    headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": json.dumps(body).encode("ascii")})


def _answer(found: str) -> tuple[int, dict[str, str]]:
    if found:
        return 503, {"status": "starting", "detail": found}
    return 200, {"status": "ok"}
