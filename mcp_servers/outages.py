"""Outages: a server's way from up to down and back, written as it happens, and told to people."""

from datetime import datetime, timedelta

from django.conf import settings
from django.db.models import F
from django.urls import reverse_lazy
from django.utils import timezone

from bonobot.lib.problems import Problem
from bonobot.lib.sayings import say
from bonobot.lib.untrusted import storable
from bonobot.notices.writing import Subject, notify, recover
from mcp_servers.models import Outage, Server

REAUTH = "needs_reauth"


def go_on(server: Server, problem: Problem, now: datetime) -> None:
    """Write one more failed contact: an outage begins, or lasts; tell people when it is time."""
    found = {"code": problem.code[:64], "detail": storable(str(problem))}
    mine = Outage.objects.filter(server=server, ended_at=None)
    if not mine.update(failures=F("failures") + 1, **found):
        fresh = Outage(organization_id=server.organization_id, server=server, began_at=now, **found)
        # Two contacts may fail at once: the second one finds the first one's row.
        Outage.objects.bulk_create([fresh], ignore_conflicts=True)
    outage = mine.first()
    if outage is not None:
        _tell(server, outage, problem)


def end(server: Server, now: datetime) -> None:
    """Write that the server is there again, and tell those who were told that it wasn't."""
    for outage in Outage.objects.filter(server=server, ended_at=None):
        if Outage.objects.filter(pk=outage.pk, ended_at=None).update(ended_at=now):
            text = say(
                "{server} answers again, after {lasted} ({code}).",
                server=server.name,
                lasted=_lasted(now - outage.began_at),
                code=outage.code,
            )
            recover(server.organization_id, subject_of(server), text, topic=_topic(outage))


def _lasted(time: timedelta) -> str:
    """Return a duration in signs that every language has."""
    minutes = max(1, round(time.total_seconds() / 60))
    if minutes < 120:
        return f"{minutes} min"
    return f"{minutes // 60} h" if minutes < 2 * 24 * 60 else f"{minutes // (24 * 60)} d"


def abandon(server: Server) -> None:
    """End what is open of a server that nobody asks any more, without a word."""
    Outage.objects.filter(server=server, ended_at=None).update(ended_at=timezone.now())


def prune(older_than: timedelta) -> int:
    """Delete outages that ended long ago; return how many rows."""
    return int(Outage.objects.filter(ended_at__lt=timezone.now() - older_than).delete()[0])


def subject_of(server: Server, page: str = "change") -> Subject:
    """Return the server as notices name it; looking up its page waits until a notice is written."""
    link = reverse_lazy(f"admin:mcp_servers_server_{page}", args=[server.pk])
    return Subject("mcp_server", str(server.pk), server.name, link)


def _tell(server: Server, outage: Outage, problem: Problem) -> None:
    why = f"{problem} {problem.remedy}".strip()
    if problem.code == REAUTH:
        event, text = REAUTH, say("{server} needs new credentials.", server=server.name)
    elif outage.failures >= settings.BONOBOT_DOWN_AFTER:
        event = "server_down"
        text = say(
            "{server} hasn't answered since {since} UTC ({n} times).",
            server=server.name,
            since=f"{outage.began_at:%Y-%m-%d %H:%M}",
            n=outage.failures,
        )
    else:
        return
    notify(server.organization_id, event, subject_of(server), f"{text} {why}", topic=_topic(outage))


def _topic(outage: Outage) -> str:
    return f"outage:{outage.pk}"
