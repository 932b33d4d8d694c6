"""Celery tasks of the authorization server: what nobody needs any more."""

from celery import shared_task
from django.utils import timezone
from oauth2_provider.models import clear_expired

from bonobot.authority import registration
from bonobot.lib.alone import Alone
from bonobot.tenancy.models import Token


@shared_task(base=Alone)
def prune_programs() -> int:
    """Remove programs that nobody let in, grants that nothing came of, and spent codes and tokens.

    Returns how many programs and grants that were.
    """
    clear_expired()
    lost = Token.objects.filter(user__isnull=False, digest="", expires_at__lt=timezone.now())
    removed, _each = lost.delete()
    return int(removed) + registration.prune()
