"""Celery tasks: send account email, prune the audit log and deleted objects."""

from celery import shared_task

from bonobot.accounts import (
    account_emails,
    audit_retention,
    deletions,
    password_reset,
    second_factor,
)
from bonobot.accounts.models import User
from bonobot.core.exclusive_task import ExclusiveTask


@shared_task
def send_password_resets(accounts: list[str]) -> None:
    """Queue emails with links; there is none if the address has no account."""
    password_reset.queue_reset_emails(accounts)


@shared_task
def send_factor_reset_email(account: str) -> None:
    """Queue the email about a second factor's reset by a process of the previous release."""
    for user in User.objects.filter(pk=account):
        account_emails.queue_email(user, second_factor.SECOND_FACTOR_RESET)


@shared_task(base=ExclusiveTask)
def send_due_account_emails() -> int:
    """Send queued emails to people that are due; return how many were tried."""
    return account_emails.send_due_emails()


@shared_task(base=ExclusiveTask)
def prune_audit() -> int:
    """Delete audit entries that are older than their organization's retention period."""
    return audit_retention.prune_expired_entries()


@shared_task(base=ExclusiveTask)
def finish_expired_deletions() -> int:
    """Delete for good what can't be restored anymore."""
    return deletions.finish_expired_deletions()
