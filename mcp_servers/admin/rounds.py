"""Rounds on the screen: what was asked of many servers, how far it is, and what failed."""

from collections.abc import Sequence
from typing import Any

from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.active import principal_of
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import fragment
from bonobot.tenancy.screens.answers import FRAGMENT, screen
from mcp_servers.models import Round, Server, Stop
from mcp_servers.rounds import NEEDS, OPEN, begin, begin_again, counted, stalled

# So many are done while the page is waited for; a worker takes more.
AT_ONCE = 3
STOPS_SHOWN = 200
UNDER_WAY_SHOWN = 5


def set_out(
    request: HttpRequest, kind: str, servers: Sequence[Server], said: Any = None
) -> HttpResponseRedirect:
    """Begin a round and show how far it is."""
    made = begin(principal_of(request), kind, servers, said)
    return HttpResponseRedirect(reverse("admin:mcp_servers_server_round", args=[made.pk]))


def under_way(request: HttpRequest) -> list[tuple[Round, dict[str, int]]]:
    """Return the organization's rounds that aren't at their end, the newest first."""
    mine = Round.objects.for_organization(principal_of(request).organization_id)
    found = counted(mine.filter(finished_at=None).order_by("-created_at"))
    return [(one, counts) for one, counts in found if counts["total"]][:UNDER_WAY_SHOWN]


def show(request: HttpRequest, round_id: Any) -> HttpResponseBase:
    """Show how far a round is, or begin what failed again; as a piece, only what changes."""
    principal = principal_of(request)
    principal.require(Action.VIEW)
    going: Round = Round.objects.get_or_404(principal.organization_id, pk=round_id)
    if request.method == "POST":
        made = begin_again(principal, going)
        return HttpResponseRedirect(reverse("admin:mcp_servers_server_round", args=[made.pk]))
    ((_same, counts),) = counted(Round.objects.filter(pk=going.pk))
    # What failed first, then what is being done: the rest is as it should be.
    order = [Stop.State.FAILED, Stop.State.RUNNING, Stop.State.WAITING, Stop.State.DONE]
    stops = sorted(going.stops.all(), key=lambda stop: order.index(Stop.State(stop.state)))
    shown: dict[str, Any] = {
        "round": going,
        "counts": counts,
        "over": counts["total"] - sum(counts.get(state, 0) for state in OPEN),
        "stops": stops[:STOPS_SHOWN],
        "left_out": max(0, len(stops) - STOPS_SHOWN),
        "stalled": stalled(going),
        "may_again": principal.may(NEEDS.get(Round.Kind(going.kind), Action.MANAGE_SERVERS)),
    }
    if FRAGMENT in request.headers:
        return fragment(request, "servers/round_body.html", **shown)
    return screen(
        request, "servers/round.html", title=_("Several servers"), opts=Server._meta, **shown
    )
