"""What is done to several servers at once is named before it is done, and done to nothing else."""

from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext as _n

from bonobot.lib.untrusted import visible
from bonobot.tenancy.screens.answers import screen
from mcp_servers import registration
from mcp_servers.admin.removing import NAMED_AT_MOST, Affected, affected_by
from mcp_servers.admin.rounds import AT_ONCE, set_out
from mcp_servers.approval import approve
from mcp_servers.models import Round, Server


def switch_off(admin: Any, request: HttpRequest, servers: Sequence[Server]) -> Any:
    """Ask with who loses what; then switch off."""
    if "confirmed" not in request.POST:
        return _ask(
            admin,
            request,
            [_who_has(server) for server in servers],
            title=_t("Switch these servers off?"),
            about=_t("Every call of them is refused from then on, for everybody who has them."),
            button=_t("Switch off"),
            icon="power_settings_new",
        )
    if len(servers) > AT_ONCE:
        return set_out(request, Round.Kind.DISABLE, servers)
    for server in servers:
        registration.switch(admin.principal(request), server, enabled=False)
    messages.success(request, _t("%(n)d servers are off.") % {"n": len(servers)})
    return None


def approve_what_waits(
    admin: Any, request: HttpRequest, servers: Sequence[Server]
) -> HttpResponseBase | None:
    """Ask with what would be approved; then approve just that: what changed meanwhile is asked."""
    waiting = {server.pk: _waiting(server) for server in servers}
    if request.POST.get("confirmed") != mark(waiting.values()):
        return _ask(
            admin,
            request,
            [_to_approve(server, waiting[server.pk]) for server in servers],
            title=_t("Approve what waits at these servers?"),
            about=_t("Agents that have them may call it from then on, as their policies say."),
            button=_t("Approve"),
            icon="task_alt",
            confirmed=mark(waiting.values()),
        )
    if len(servers) > AT_ONCE:
        said = {pk: {str(one): digest for one, digest in of.items()} for pk, of in waiting.items()}
        for server in servers:
            _tell_held(request, server)
        return set_out(request, Round.Kind.APPROVE, servers, said)
    for server in servers:
        if seen := waiting[server.pk]:
            done = approve(admin.principal(request), server, seen)
            text = _t("%(server)s: %(n)d definitions approved.")
            messages.success(request, text % {"server": server, "n": len(done.approved)})
        _tell_held(request, server)
    return None


def mark(waiting: Iterable[dict[UUID, str]]) -> str:
    """Return a mark of exactly these definitions as they stand."""
    said = sorted(f"{pk}:{digest}" for one in waiting for pk, digest in one.items())
    return sha256("\n".join(said).encode()).hexdigest()


def _waiting(server: Server) -> dict[UUID, str]:
    rows = server.definitions.waiting().only("pk", "digest", "findings")
    return {row.pk: row.digest for row in rows if not row.findings}


def _tell_held(request: HttpRequest, server: Server) -> None:
    held = [str(row) for row in server.definitions.waiting() if row.findings]
    if held:
        text = _t("%(server)s: %(names)s read like orders to a model. Read and approve each.")
        names = visible(", ".join(held[:NAMED_AT_MOST]), 500)
        messages.warning(request, text % {"server": server, "names": names})


def _to_approve(server: Server, seen: dict[UUID, str]) -> Affected:
    rows = server.definitions.filter(pk__in=seen).order_by("kind", "name")[:NAMED_AT_MOST]
    names = tuple(visible(str(row), 120) for row in rows)
    title = _n("definition", "definitions", len(seen))
    return Affected(server, ((title, len(seen), names),) if seen else ())


def _who_has(server: Server) -> Affected:
    named = tuple(row for row in affected_by(server).rows if row[2])
    return Affected(server, named)


def _ask(
    admin: Any, request: HttpRequest, affected: Sequence[Affected], **texts: Any
) -> HttpResponseBase:
    return screen(
        request,
        "servers/bulk.html",
        affected=affected,
        opts=admin.opts,
        action=request.POST.get("action", ""),
        **{"confirmed": "1", **texts},
    )
