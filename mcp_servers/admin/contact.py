"""Ask servers now, beside each other, and say in a sentence what came of it."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from django.contrib import messages
from django.http import HttpRequest
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext

from bonobot.ledger.actors import Actor
from bonobot.lib.highlighting import sentence
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible
from bonobot.tenancy.screens import told
from mcp_servers.discovery import Discovered, discover
from mcp_servers.models import Server

BESIDE_EACH_OTHER = 16


@dataclass(frozen=True)
class Contact:
    """What came of asking one server: what was found, or the problem."""

    server: Server
    found: Discovered | None = None
    problem: Problem | None = None


def contact(servers: Sequence[Server], *, actor: Actor, kind: str) -> list[Contact]:
    """Ask each server what it offers; a failure is recorded on it and disturbs no other."""
    return runtime().call(_contact_all, servers, actor, kind)


async def _contact_all(servers: Sequence[Server], actor: Actor, kind: str) -> list[Contact]:
    gate = asyncio.Semaphore(BESIDE_EACH_OTHER)

    async def one(server: Server) -> Contact:
        async with gate:
            try:
                return Contact(server, found=await discover(server.pk, actor=actor, kind=kind))
            except Problem as problem:
                return Contact(server, problem=problem)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(server)) for server in servers]
    return [task.result() for task in tasks]


def report(request: HttpRequest, contacts: Sequence[Contact]) -> None:
    """Add a message for each server: what it offers and what waits, or what to do."""
    for one in contacts:
        name = visible(one.server.name)
        if one.problem is not None:
            messages.error(request, sentence(f"{name}: {told(one.problem)}", 2_000))
        elif one.found is not None:
            say = messages.warning if one.found.waiting else messages.success
            say(request, f"{name}: {summary(one.found)}")


def summary(found: Discovered) -> str:
    """Return a discovery in one sentence."""
    tools = len(found.tools)
    parts = [
        ngettext("%(n)d tool", "%(n)d tools", tools) % {"n": tools},
        _t("answered in %(ms)d ms") % {"ms": found.latency_ms},
    ]
    counts = (
        (_t("%(n)d new"), found.new),
        (_t("%(n)d changed"), found.changed),
        (_t("%(n)d gone"), found.gone),
        (_t("%(n)d refused"), found.refused),
        (_t("%(n)d wait for approval"), found.waiting),
    )
    return ", ".join([*parts, *(text % {"n": count} for text, count in counts if count)]) + "."
