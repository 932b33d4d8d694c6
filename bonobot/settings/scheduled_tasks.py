"""The default schedule of Celery beat; `bonobot.jobs.schedules` stores it in editable rows."""

from typing import Any

from bonobot.settings import oauth_server

# Name, task and default period in seconds.
SCHEDULED_TASKS = (
    ("check due servers", "mcp_servers.tasks.check_due_servers", 10),
    ("sweep", "agents.tasks.sweep", 10),
    ("deliver notifications", "bonobot.notifications.tasks.send_due_notifications", 10),
    ("send account emails", "bonobot.accounts.tasks.send_due_account_emails", 30),
    ("run due workflows", "agents.tasks.run_due_workflows", 10),
    ("count usage", "bonobot.ledger.tasks.count_usage", 60),
    ("export audit checkpoints", "bonobot.ledger.tasks.export_signed_checkpoints", 60),
    ("watch budgets", "agents.tasks.send_budget_alerts", 60),
    ("delete tokens of former members", "mcp_servers.tasks.revoke_former_members", 60),
    ("rescan definitions", "mcp_servers.tasks.rescan_definitions", 60),
    ("delete unrestored objects", "bonobot.accounts.tasks.finish_expired_deletions", 60),
    ("prune health history", "mcp_servers.tasks.prune_health_history", 3_600),
    ("prune notifications", "bonobot.notifications.tasks.prune_notifications", 86_400),
    ("delete expired data", "bonobot.ledger.tasks.delete_expired_data", 86_400),
    ("prune audit log", "bonobot.accounts.tasks.prune_audit", 86_400),
)


def build_default_schedule(*, with_oauth: bool) -> dict[str, dict[str, Any]]:
    """Return the entries of `CELERY_BEAT_SCHEDULE`, by name."""
    tasks = (*SCHEDULED_TASKS, *oauth_server.build_scheduled_tasks(with_oauth))
    return {name: _build_schedule_entry(task, seconds) for name, task, seconds in tasks}


def _build_schedule_entry(task: str, seconds: int) -> dict[str, Any]:
    """Return an entry whose message expires before the next one is sent."""
    expires = min(seconds - 1, 3_600)
    return {"task": task, "schedule": float(seconds), "options": {"expires": expires}}
