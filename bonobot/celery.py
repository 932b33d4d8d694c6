"""The Celery application: its configuration is the `CELERY_*` part of the settings."""

import gc
import logging.config
import os
import sys
from collections.abc import Mapping
from typing import Any

from celery import Celery
from celery.signals import (
    beat_init,
    before_task_publish,
    celeryd_init,
    import_modules,
    setup_logging,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)

from bonobot.jobs.broker import register_transport
from bonobot.jobs.queues import QUEUE_NAMES, SCHEDULER_OPTION, SESSION_QUEUE, set_sent_at

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")

# As in web processes: at Python's 700 objects, a session would be interrupted more often.
GARBAGE_THRESHOLDS = (10_000, 10, 10)
# A thread returning from the database waits this long for the GIL at each statement; Python's
# default of 5 ms is too slow with many sessions.
SWITCH_INTERVAL_S = 0.001

register_transport()
app = Celery("bonobot")
app.config_from_object("django.conf:settings", namespace="CELERY")
app.autodiscover_tasks()


def add_scheduler() -> None:
    """Load Celery's scheduler and add its option, which only some workers need."""
    from bonobot.processes.scheduler_thread import add_scheduler_option

    add_scheduler_option(app)


if SCHEDULER_OPTION in sys.argv:
    add_scheduler()


@import_modules.connect(sender=app)  # after the receiver of `autodiscover_tasks`
def register_old_task_names(**_: Any) -> None:
    """Let a worker run messages that were queued before the upgrade."""
    register_renamed_tasks(app)


@celeryd_init.connect
def take_over_sessions(options: Mapping[str, Any], **_: Any) -> None:
    """Continue the sessions of a worker that died, before Celery connects to its broker.

    Celery's start takes longer than a session should stand still. A worker that doesn't serve the
    queue of sessions takes none over.
    """
    # Loaded modules aren't garbage; `bonobot worker` disables this even earlier.
    gc.disable()
    names = options.get("queues") or QUEUE_NAMES
    if SESSION_QUEUE not in (names.split(",") if isinstance(names, str) else names):
        return
    from agents.sessions.worker import get_session_runner  # models, which need settings
    from bonobot.core.runtime import get_runtime

    get_runtime().call(get_session_runner().take_over_sessions)


@setup_logging.connect
def apply_logging_settings(**_: Any) -> None:
    """Apply the settings' logging; connecting to this signal disables Celery's own."""
    from django.conf import settings  # settings import this package, so not at the top

    logging.config.dictConfig(settings.LOGGING)


@before_task_publish.connect
def record_sent_time(headers: dict[str, Any], **_: Any) -> None:
    """Record in each message when it was sent."""
    set_sent_at(headers)


@worker_ready.connect
def register_runner(**_: Any) -> None:
    """Start the session runner's heartbeat, the listener for server changes and the probes."""
    from agents.sessions.worker import get_session_runner  # models, which need settings
    from bonobot.core.runtime import get_runtime
    from bonobot.monitoring import probe_server
    from mcp_servers.subscriptions.list_changed import get_listener

    probe_server.start_probe_server(probe_server.measure_loop_age_s)
    get_runtime().call(get_session_runner().start)
    # Other sessions whose messages were lost.
    get_runtime().spawn(get_session_runner().announce_sessions(), name="announce sessions")
    get_runtime().call(get_listener().start)
    # Loaded objects are permanent: scanning them again would pause all sessions.
    gc.freeze()
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    gc.enable()
    sys.setswitchinterval(SWITCH_INTERVAL_S)


@beat_init.connect
def start_probes(**_: Any) -> None:
    from bonobot.jobs.celery_beat import BonobotScheduler
    from bonobot.monitoring import metrics_endpoint, probe_server  # models, which need settings

    metrics_endpoint.register_row_metrics(lambda: BonobotScheduler.leader.is_leader)
    probe_server.start_probe_server(BonobotScheduler.measure_tick_age_s)


@worker_shutting_down.connect
def start_draining(**_: Any) -> None:
    """Release sessions as soon as the worker gets the signal; Celery itself takes seconds."""
    from agents.sessions.worker import get_session_runner  # models, which need settings
    from bonobot.core.runtime import get_runtime

    get_runtime().spawn(get_session_runner().drain(), name="release sessions")


@worker_shutdown.connect
def drain_and_close(**_: Any) -> None:
    """Wait for running calls, then close connections and child processes on shutdown."""
    from agents.sessions.worker import get_session_runner  # models, which need settings
    from bonobot.core.runtime import close_runtime, get_runtime

    get_runtime().call(get_session_runner().drain)
    close_runtime()


RENAMED_TASKS = {
    "agents.tasks.play_recording": "agents.tasks.run_replay",
    "agents.tasks.watch_budgets": "agents.tasks.send_budget_alerts",
    "bonobot.accounts.tasks.mail_factor_reset": "bonobot.accounts.tasks.send_factor_reset_email",
    "bonobot.ledger.tasks.export_heads": "bonobot.ledger.tasks.export_signed_checkpoints",
    "bonobot.ledger.tasks.forget_cells": "bonobot.ledger.tasks.delete_expired_data",
    "bonobot.ledger.tasks.verify_further": "bonobot.ledger.tasks.continue_verification",
    "bonobot.notifications.tasks.prune_notices": "bonobot.notifications.tasks.prune_notifications",
    "bonobot.oauth_server.tasks.prune_programs": "bonobot.oauth_server.tasks.prune_oauth_clients",
    "mcp_servers.tasks.carry_out_round": "mcp_servers.tasks.run_bulk_job",
    "mcp_servers.tasks.check_due": "mcp_servers.tasks.check_due_servers",
    "mcp_servers.tasks.forget_who_left": "mcp_servers.tasks.revoke_former_members",
    "mcp_servers.tasks.prune_checks": "mcp_servers.tasks.prune_health_history",
}


def register_renamed_tasks(app: Celery) -> None:
    """Register the tasks under their old names, too; those of apps that are off have none."""
    for old_name, new_name in RENAMED_TASKS.items():
        if task := app.tasks.get(new_name):
            base: Any = type(task).__bases__[0]
            app.task(name=old_name, base=base)(task.run)
