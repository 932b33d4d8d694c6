"""Celery tasks that were renamed after version 0.1.

Messages with an old name that are queued during the upgrade still run. The next release removes
this module.
"""

from typing import Any

from celery import Celery

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
