"""Celery tasks of the authorization server."""

from celery import shared_task
from django.utils import timezone
from oauth2_provider.models import clear_expired

from bonobot.accounts.models import Token
from bonobot.core.exclusive_task import ExclusiveTask
from bonobot.oauth_server import client_registration


@shared_task(base=ExclusiveTask)
def prune_oauth_clients() -> int:
    """Delete OAuth clients without grants, unused grants, and spent codes and tokens.

    Returns how many programs and grants that were.
    """
    clear_expired()
    unused_grants = Token.objects.filter(
        user__isnull=False, digest="", expires_at__lt=timezone.now()
    )
    removed_count, _each = unused_grants.delete()
    return int(removed_count) + client_registration.prune_unused_clients()
