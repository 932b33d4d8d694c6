"""Load the modules of web processes and workers into the process that they are forked from.

Nothing is started, connected to or read from a database: see `bonobot.processes.forked_process`.
"""

import gc
from collections.abc import Iterable
from importlib import import_module

from bonobot.jobs.queues import SCHEDULER_OPTION
from bonobot.processes.supervisor import ProcessSpec

WEB_MODULES = (
    *("bonobot.asgi", "bonobot.processes.http_protocol"),
    *("uvicorn", "uvicorn.lifespan.on", "uvicorn.loops.asyncio"),
)
WORKER_MODULES = (
    *("celery.app.amqp", "celery.app.control", "celery.app.events", "celery.app.log"),
    *("celery.apps.worker", "celery.bin.celery", "celery.bin.worker", "celery.concurrency.thread"),
    *("celery.worker.autoscale", "celery.worker.components", "celery.worker.consumer"),
    *("celery.worker.heartbeat", "celery.worker.strategy", "kombu.transport.filesystem"),
    *("agents.sessions.worker", "bonobot.monitoring.probe_server"),
    *("django.db.models.sql.compiler", "mcp_servers.subscriptions.list_changed"),
)


def load_programs(programs: Iterable[ProcessSpec]) -> None:
    """Import what the programs need before they are ready, in a process that starts nothing itself.

    Everything is loaded before the first fork, because loading changes memory that is shared then.
    """
    load_web()
    for program in programs:
        if not program.name.startswith("web"):
            load_worker(with_scheduler=SCHEDULER_OPTION in program.command)
    gc.collect()
    gc.freeze()  # a child that collects garbage would copy all objects of its parent


def load_web() -> None:
    """Import and compute what a web process needs."""
    for name in WEB_MODULES:
        import_module(name)
    # Loaded after Django was set up. Web processes would compute them soon after their start.
    from agents.gateway.organization_server.management_tools import prepare_management_tools

    prepare_management_tools()
    load_migrations()


def load_worker(*, with_scheduler: bool) -> None:
    """Import what a worker needs, and the scheduler if it runs one."""
    import django

    from bonobot import celery

    django.setup()
    celery.app.loader.import_default_modules()
    for name in WORKER_MODULES:
        import_module(name)
    if with_scheduler:
        celery.add_scheduler()


def load_migrations() -> None:
    """Import all migrations, as the first request for /healthz does; this needs no database."""
    from django.db.migrations.loader import MigrationLoader

    MigrationLoader(None)
