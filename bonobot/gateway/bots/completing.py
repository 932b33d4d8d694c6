"""Completing: what an argument of a skill, or the name in a template's URI, may begin with."""

from collections.abc import Iterable
from typing import Any

from agents.models import Agent, Session, Workflow
from agents.skills.rendering import completions
from bonobot.gateway.bots.prompts import skill_named
from bonobot.gateway.bots.resources import KINDS, uri
from bonobot.gateway.failures import unknown
from bonobot.gateway.inbound import Inbound, bad_params
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import storable
from bonobot.tenancy.principals import Principal

MOST = 100
LATEST = 1_000
TEMPLATES = {uri(kind, "{id}"): kind for kind in KINDS}


async def complete(inbound: Inbound) -> dict[str, Any]:
    """Answer `completion/complete` (a query); raises `MCPError`."""
    ref, argument = storable(inbound.members("ref")), storable(inbound.members("argument"))
    name, begun = argument.get("name"), argument.get("value")
    if not isinstance(name, str) or not isinstance(begun, str):
        raise bad_params("`argument` must have a name and a value")
    principal = inbound.visitor.principal
    if ref.get("type") == "ref/prompt":
        skill = await runtime().orm(skill_named, principal, str(ref.get("name")))
        if skill is None:
            raise unknown("prompt", str(ref.get("name")))
        return _completed(completions(skill, name, begun))
    kind = TEMPLATES.get(str(ref.get("uri")))
    if kind is None:
        raise unknown("resource", str(ref.get("uri")))
    return _completed(await runtime().orm(_names, principal, kind, begun) if name == "id" else ())


def _names(principal: Principal, kind: str, begun: str) -> list[str]:
    if kind == "sessions":
        sessions = Session.objects.visible_to(principal).order_by("-created_at")
        latest = sessions.values_list("pk", flat=True)[:LATEST]
        return [str(one) for one in latest if str(one).startswith(begun.lower())]
    rows, name = (Agent, "slug") if kind == "agents" else (Workflow, "name")
    mine = rows.objects.visible_to(principal).filter(**{f"{name}__istartswith": begun})
    return list(mine.order_by(name).values_list(name, flat=True)[: MOST + 1])


def _completed(values: Iterable[str]) -> dict[str, Any]:
    found = list(values)
    return {"completion": {"values": found[:MOST], "hasMore": len(found) > MOST}}
