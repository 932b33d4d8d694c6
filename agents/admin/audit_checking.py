"""The audit's verification beside its list: how far it has come, and having a worker go on."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponseNotAllowed, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.shortcuts import render
from django.urls import path, reverse
from django.utils.translation import gettext as _t

from bonobot.ledger.tasks import VERIFY_FURTHER
from bonobot.ledger.verify import Standing, remembered
from bonobot.lib.nudges import nudge
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

LIST = "admin:ledger_auditrow_changelist"
MOST_SHOWN = 10
ASKED = "verification_asked"
# Within that long a worker takes it up, and writes after each step; later none is at it.
TAKEN_UP = timedelta(minutes=1)


def addresses(
    view: Callable[..., Any], principal_of: Callable[[HttpRequest], Principal]
) -> list[Any]:
    """Return where a verification is asked for, and told; `view` guards as the admin does."""

    def verify(request: HttpRequest) -> HttpResponseBase:
        if request.method != "POST":
            return HttpResponseNotAllowed(["POST"])
        principal = principal_of(request)
        principal.require(Action.VIEW_AUDIT)
        afresh = "afresh" if "afresh" in request.POST else ""
        found = remembered(principal.organization_id)
        request.session[ASKED] = {
            "of": str(principal.organization_id),
            "at": datetime.now(UTC).isoformat(),
            "then": found.at if found else "",
        }
        messages.success(request, _t("A worker verifies it; this page tells how far it is."))
        nudge(VERIFY_FURTHER, str(principal.organization_id), afresh)
        return HttpResponseRedirect(f"{reverse(LIST)}#verification")

    def verification(request: HttpRequest) -> HttpResponseBase:
        principal = principal_of(request)
        principal.require(Action.VIEW_AUDIT)
        told = {"verified": standing(request, principal)}
        return render(request, "admin/audit/verification.html", told)

    return [
        path("verify/", view(verify), name="ledger_auditrow_verify"),
        path("verification/", view(verification), name="ledger_auditrow_verification"),
    ]


def standing(request: HttpRequest, principal: Principal) -> dict[str, Any]:
    """Return how far the organization's audit is verified, and whether that goes on (a query)."""
    found = remembered(principal.organization_id)
    asked = _asked(request, principal, found)
    if found is None:
        return {"never": True, **asked}
    at = datetime.fromisoformat(found.at) if found.at else None
    under_way = not found.done and at is not None and datetime.now(UTC) - at < TAKEN_UP
    return {
        "seq": found.seq,
        "at": at,
        "done": found.done,
        "percent": int(found.share * 100),
        "faults": found.faults[:MOST_SHOWN],
        "number": len(found.faults),
        "running": under_way,
        **asked,
    }


def _asked(request: HttpRequest, principal: Principal, found: Standing | None) -> dict[str, Any]:
    """Say whether this person asked for a verification that no worker has begun yet."""
    kept = request.session.get(ASKED)
    then = found.at if found else ""
    if not kept or kept["of"] != str(principal.organization_id) or kept["then"] != then:
        return {}
    waits = datetime.now(UTC) - datetime.fromisoformat(kept["at"]) < TAKEN_UP
    return {"asked": True, "running": waits, "stalled": not waits}
