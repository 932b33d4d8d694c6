"""Celery tasks of people and organizations."""

from celery import shared_task

from bonobot.lib.alone import Alone
from bonobot.tenancy import resets, retention, second_factor
from bonobot.tenancy.models import User


@shared_task
def mail_resets(accounts: list[str]) -> int:
    """Mail links for new passwords; none is the usual case of somebody who guesses addresses."""
    return resets.mail_resets(accounts)


@shared_task
def mail_factor_reset(account: str) -> None:
    """Mail a person that their second factor was reset."""
    for user in User.objects.filter(pk=account, is_active=True).exclude(email=""):
        second_factor.mail_reset(user)


@shared_task(base=Alone)
def prune_audit() -> int:
    """Remove the audit's rows that are older than their organization keeps them."""
    return retention.prune_old()
