"""Test a model endpoint with one question."""

import asyncio
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from agents.budgets.services import load_limits
from agents.calls.snapshots import CallSnapshot
from agents.llm import interface as llm_interface
from agents.llm.pricing import estimate_tokens
from agents.model_endpoints.request_budget import ReservationRequest, build_opening, reserve, settle
from agents.model_endpoints.services import build_endpoint
from agents.models import ModelEndpoint
from agents.policies.decisions import EffectivePolicy, KillSwitches
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.queries import load_policy_generation
from bonobot.ledger.types import Actor, Opening

QUESTION = "Answer with one word: ready."
# Enough for a model that thinks first, and little money.
LONGEST_ANSWER = 256
PATIENCE_S = 30
SHOWN = 200


@dataclass(frozen=True)
class EndpointTestResult:
    """What came of asking: the beginning of the answer, how long it took and what it cost."""

    answer: str
    duration_ms: int
    usage: llm_interface.TokenUsage | None
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


def try_endpoint(principal: Principal, row: ModelEndpoint) -> EndpointTestResult:
    """Ask a model endpoint now, and wait for at most 30 seconds.

    Raises `ModelError` with what to do about it, and what bounds the organization's turns: a halt,
    a budget that is spent.
    """
    principal.require(Action.MANAGE_AGENTS)
    endpoint = build_endpoint(row)
    endpoint = replace(endpoint, timeout_s=min(endpoint.timeout_s, PATIENCE_S))
    snapshot = _snapshot(row.organization_id)
    return get_runtime().call(_send_test_question, endpoint, snapshot, principal.actor)


def _snapshot(organization_id: UUID) -> CallSnapshot:
    """Return what bounds a turn of no agent: the organization's switch and its budgets."""
    read_at = load_policy_generation(organization_id)
    organization = Organization.objects.get(pk=organization_id)
    return CallSnapshot(
        organization_id=organization_id,
        generation=read_at,
        tools={},
        servers={},
        limits=load_limits(organization_id, {}),
        ruling=EffectivePolicy(switches=KillSwitches(organization=organization.halted_at is None)),
    )


async def _send_test_question(
    endpoint: llm_interface.ModelEndpointConfig, snapshot: CallSnapshot, actor: Actor
) -> EndpointTestResult:
    call_id = uuid4()
    messages = [llm_interface.build_user_message(QUESTION)]
    asking = ReservationRequest(
        session_id=call_id,  # of no session: no budget is of this one
        endpoint=endpoint,
        estimate=estimate_tokens(messages, "", ()),
        opening=partial(_build_opening, call_id, endpoint, actor),
        answer=min(endpoint.max_tokens or LONGEST_ANSWER, LONGEST_ANSWER),
    )
    held = await reserve(asking, snapshot)
    began = perf_counter()
    end = partial(settle, call_id, snapshot.organization_id, endpoint, held.reserves, began=began)
    try:
        reply = await llm_interface.build_model(endpoint).request(
            messages, max_tokens=asking.answer
        )
    except Problem as problem:
        await end(outcome="error", usage=None, code=problem.code)
        raise
    except asyncio.CancelledError:
        await asyncio.shield(end(outcome="cancelled", usage=None, code="cancelled"))
        raise
    duration_ms = round((perf_counter() - began) * 1000)
    cost = await end(outcome="ok", usage=reply.usage)
    return EndpointTestResult(make_visible(reply.text, SHOWN), duration_ms, reply.usage, cost)


def _build_opening(
    call_id: UUID,
    endpoint: llm_interface.ModelEndpointConfig,
    actor: Actor,
    snapshot: CallSnapshot,
    estimate: int,
) -> Opening:
    return build_opening(
        call_id,
        endpoint,
        snapshot,
        estimate,
        details={},
        action="model_endpoint_test",
        actor=actor,
        rule="turn",
    )
