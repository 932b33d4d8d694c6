"""Celery tasks: send account email, prune the audit log and deleted objects."""

from celery import shared_task

from bonobot.accounts import (
    account_change_emails,
    audit_retention,
    password_reset,
    reset_review,
    second_factor,
)
from bonobot.accounts.deletions import services as deletions
from bonobot.accounts.models import User
from bonobot.core.exclusive_task import ExclusiveTask


@shared_task
def send_password_resets(accounts: list[str]) -> int:
    """Mail links for new passwords; none is the usual case of somebody who guesses addresses."""
    return password_reset.send_reset_emails(accounts)


@shared_task
def send_factor_reset_email(account: str) -> None:
    """Mail a person that their second factor was reset."""
    for user in User.objects.filter(pk=account, is_active=True).exclude(email=""):
        second_factor.send_second_factor_reset_email(user)


@shared_task
def send_account_change_email(account: str, change: str, address: str, method: str) -> None:
    """Mail an address of a person that their sign-in was changed."""
    for user in User.objects.filter(pk=account):
        account_change_emails.send_change_email(user, change, address, method)


@shared_task
def send_reset_review_email(account: str) -> None:
    """Mail a person that their password was reset, with a link to what may have been changed."""
    for user in User.objects.filter(pk=account, is_active=True).exclude(email=""):
        reset_review.send_review_email(user)


@shared_task(base=ExclusiveTask)
def prune_audit() -> int:
    """Delete audit entries that are older than their organization's retention period."""
    return audit_retention.prune_expired_entries()


@shared_task(base=ExclusiveTask)
def finish_expired_deletions() -> int:
    """Delete for good what can't be restored anymore."""
    return deletions.finish_expired_deletions()
