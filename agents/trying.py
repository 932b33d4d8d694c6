"""Trying a model endpoint: one small question, governed and audited like every turn."""

import asyncio
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from agents.endpoint_rules import endpoint_of
from agents.governance.policies import Ruling, Switches
from agents.governance.rulings import limits_of
from agents.governance.snapshots import Snapshot
from agents.llm import port
from agents.llm.prices import estimate_tokens
from agents.models import ModelEndpoint
from agents.sessions.reserving import Asking, opening_of, reserve
from agents.sessions.settling import settle
from bonobot.ledger.actors import Actor
from bonobot.ledger.entries import Opening
from bonobot.ledger.heads import generation
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import visible
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action

QUESTION = "Answer with one word: ready."
# Enough for a model that thinks first, and little money.
LONGEST_ANSWER = 256
PATIENCE_S = 30
SHOWN = 200


@dataclass(frozen=True)
class Trial:
    """What came of asking: the beginning of the answer, how long it took and what it cost."""

    answer: str
    duration_ms: int
    usage: port.Usage | None
    cost_microusd: int

    def as_dict(self) -> dict[str, Any]:
        """Return it as programs read it; tokens are None where the endpoint tells none."""
        used = asdict(self.usage) if self.usage else {}
        return {
            "answer": self.answer,
            "duration_ms": self.duration_ms,
            "input_tokens": used.get("input_tokens"),
            "output_tokens": used.get("output_tokens"),
            "cost_microusd": self.cost_microusd,
        }


def try_endpoint(principal: Principal, row: ModelEndpoint) -> Trial:
    """Ask a model endpoint now, and wait for at most 30 seconds.

    Raises `ModelError` with what to do about it, and what bounds the organization's turns: a halt,
    a budget that is spent.
    """
    principal.require(Action.MANAGE_AGENTS)
    endpoint = endpoint_of(row)
    endpoint = replace(endpoint, timeout_s=min(endpoint.timeout_s, PATIENCE_S))
    snapshot = _snapshot(row.organization_id)
    return runtime().call(_tried, endpoint, snapshot, principal.actor)


def _snapshot(organization_id: UUID) -> Snapshot:
    """Return what bounds a turn of no agent: the organization's switch and its budgets."""
    read_at = generation(organization_id)
    organization = Organization.objects.get(pk=organization_id)
    return Snapshot(
        organization_id=organization_id,
        generation=read_at,
        tools={},
        servers={},
        limits=limits_of(organization_id, {}),
        ruling=Ruling(switches=Switches(organization=organization.halted_at is None)),
    )


async def _tried(endpoint: port.Endpoint, snapshot: Snapshot, actor: Actor) -> Trial:
    call_id = uuid4()
    messages = [port.user_message(QUESTION)]
    asking = Asking(
        session_id=call_id,  # of no session: no budget is of this one
        endpoint=endpoint,
        estimate=estimate_tokens(messages, "", ()),
        opening=partial(_opening, call_id, endpoint, actor),
        answer=min(endpoint.max_tokens or LONGEST_ANSWER, LONGEST_ANSWER),
    )
    held = await reserve(asking, snapshot)
    began = perf_counter()
    end = partial(settle, call_id, snapshot.organization_id, endpoint, held.reserves, began=began)
    try:
        reply = await port.model_for(endpoint).request(messages, max_tokens=asking.answer)
    except Problem as problem:
        await end(outcome="error", usage=None, code=problem.code)
        raise
    except asyncio.CancelledError:
        await asyncio.shield(end(outcome="cancelled", usage=None, code="cancelled"))
        raise
    duration_ms = round((perf_counter() - began) * 1000)
    cost = await end(outcome="ok", usage=reply.usage)
    return Trial(visible(reply.text, SHOWN), duration_ms, reply.usage, cost)


def _opening(
    call_id: UUID, endpoint: port.Endpoint, actor: Actor, snapshot: Snapshot, estimate: int
) -> Opening:
    return opening_of(
        call_id,
        endpoint,
        snapshot,
        estimate,
        details={},
        action="model_endpoint_test",
        actor=actor,
        rule="turn",
    )
