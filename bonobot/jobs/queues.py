"""Worker queues and task routes.

Messages of a queue are processed in order, queues in turn. A message only starts work: sessions and
discoveries run on the worker's loop (`ConcurrencyLimit` bounds the latter), and scheduled tasks run
one at a time per worker (`ExclusiveTask`), each in its own thread.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# The header with the time a message was sent, in seconds since 1970.
SENT_AT = "bonobot_sent_at"
# The option of a worker that also runs the scheduler.
SCHEDULER_OPTION = "--scheduler-thread"
SESSION_QUEUE = "sessions"
# The queue of tasks without a route.
DEFAULT_QUEUE = "sweeps"


@dataclass(frozen=True)
class TaskQueue:
    """A queue: its name, a description and its tasks."""

    name: str
    description: str
    tasks: tuple[str, ...]


QUEUES = (
    TaskQueue(
        SESSION_QUEUE,
        "agent sessions and replays",
        ("agents.tasks.run_session", "agents.tasks.run_replay"),
    ),
    TaskQueue(
        "sweeps",
        "recovery and schedules: sessions, workflow runs, budgets, former members",
        (
            "agents.tasks.sweep",
            "agents.tasks.run_due_workflows",
            "agents.tasks.send_budget_alerts",
            "mcp_servers.tasks.revoke_former_members",
        ),
    ),
    TaskQueue("health", "server health checks", ("mcp_servers.tasks.check_due_servers",)),
    TaskQueue(
        "discovery",
        "discovery, rescans with newer rules, and bulk jobs on servers",
        (
            "mcp_servers.tasks.discover_server",
            "mcp_servers.tasks.rescan_definitions",
            "mcp_servers.tasks.run_bulk_job",
        ),
    ),
    TaskQueue(
        "notices",
        "emails and webhooks",
        (
            "bonobot.notifications.tasks.send_due_notifications",
            "bonobot.accounts.tasks.send_due_account_emails",
            "bonobot.accounts.tasks.send_factor_reset_email",
            "bonobot.accounts.tasks.send_password_resets",
        ),
    ),
    TaskQueue(
        "upkeep",
        "usage totals, audit checkpoints, and removal of old rows",
        (
            "bonobot.ledger.tasks.count_usage",
            "bonobot.ledger.tasks.export_signed_checkpoints",
            "bonobot.ledger.tasks.delete_expired_data",
            "bonobot.ledger.tasks.continue_verification",
            "bonobot.accounts.tasks.finish_expired_deletions",
            "bonobot.accounts.tasks.prune_audit",
            "bonobot.notifications.tasks.prune_notifications",
            "mcp_servers.tasks.prune_health_history",
            "bonobot.oauth_server.tasks.prune_oauth_clients",
        ),
    ),
)
QUEUE_NAMES = tuple(queue.name for queue in QUEUES)


def build_task_queues() -> list[Any]:
    """Return Celery's queues.

    Each has its own routing key: queues with the same one would all get a copy of each message.
    """
    from kombu import Queue

    return [Queue(name, routing_key=name) for name in QUEUE_NAMES]


def build_task_routes() -> dict[str, dict[str, str]]:
    return {task: {"queue": queue.name} for queue in QUEUES for task in queue.tasks}


def set_sent_at(headers: dict[str, Any]) -> None:
    """Set a message's time of sending in its headers."""
    headers[SENT_AT] = time.time()


def compute_message_age_s(headers: Mapping[str, Any]) -> float:
    """Return the seconds since a message was sent; 0 if unknown."""
    sent_at = headers.get(SENT_AT)
    return max(time.time() - sent_at, 0.0) if isinstance(sent_at, float | int) else 0.0
