"""Test a model endpoint with one request."""

import asyncio
from dataclasses import asdict, dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any
from uuid import UUID, uuid4

from agents.budgets.services import load_limits
from agents.calls.snapshots import CallSnapshot
from agents.llm import interface as llm_interface
from agents.llm.token_estimates import estimate_tokens
from agents.model_endpoints.request_budget import (
    ReservationRequest,
    build_opening,
    reserve_model_request,
    settle_model_request,
)
from agents.model_endpoints.services import build_endpoint
from agents.models import ModelEndpoint
from agents.policies.decisions import EffectivePolicy, KillSwitches
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from bonobot.ledger.policy_generations import load_policy_generation
from bonobot.ledger.types import Actor

TEST_PROMPT = "Answer with one word: ready."
# Enough for a reasoning model, and cheap.
MAX_ANSWER_TOKENS = 256
TIMEOUT_S = 30
MAX_ANSWER_SHOWN = 200


@dataclass(frozen=True)
class EndpointTestResult:
    """The result of a test: the start of the answer, duration and cost."""

    answer: str
    duration_ms: int
    usage: llm_interface.TokenUsage | None
    cost_microusd: int

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation; tokens are None if the endpoint reports none."""
        usage = asdict(self.usage) if self.usage else {}
        return {
            "answer": self.answer,
            "duration_ms": self.duration_ms,
            "input_tokens": usage.get("input_tokens"),
            "output_tokens": usage.get("output_tokens"),
            "cached_tokens": usage.get("cached_tokens"),
            "cost_microusd": self.cost_microusd,
        }


def try_endpoint(principal: Principal, row: ModelEndpoint) -> EndpointTestResult:
    """Send a test request to a model endpoint, with a timeout of at most 30 seconds.

    Raises `ModelError`, `CallRefused` (organization halted) or `Refusal` (budget exhausted).
    """
    principal.require(Action.MANAGE_AGENTS)
    endpoint = build_endpoint(row)
    endpoint = replace(endpoint, timeout_s=min(endpoint.timeout_s, TIMEOUT_S))
    snapshot = _build_snapshot(row.organization_id)
    return get_runtime().call(_send_test_question, endpoint, snapshot, principal.actor)


def _build_snapshot(organization_id: UUID) -> CallSnapshot:
    """Return a snapshot without an agent: the organization's kill switch and budgets."""
    generation = load_policy_generation(organization_id)
    organization = Organization.objects.get(pk=organization_id)
    return CallSnapshot(
        organization_id=organization_id,
        generation=generation,
        tools={},
        servers={},
        limits=load_limits(organization_id, {}),
        effective_policy=EffectivePolicy(
            switches=KillSwitches(organization=organization.halted_at is None)
        ),
    )


async def _send_test_question(
    endpoint: llm_interface.ModelEndpointConfig, snapshot: CallSnapshot, actor: Actor
) -> EndpointTestResult:
    call_id = uuid4()
    messages = [llm_interface.build_user_message(TEST_PROMPT)]
    request = ReservationRequest(
        session_id=call_id,  # there is no session, so no session budget applies
        endpoint=endpoint,
        estimate=estimate_tokens(messages, "", ()),
        build_opening=partial(
            build_opening,
            call_id,
            endpoint,
            details={},
            action="model_endpoint_tested",
            actor=actor,
            rule="turn",
        ),
        max_answer_tokens=min(endpoint.max_tokens or MAX_ANSWER_TOKENS, MAX_ANSWER_TOKENS),
        wait_s=0,
    )
    reservation = await reserve_model_request(request, snapshot)
    started_at = perf_counter()
    settle_test = partial(
        settle_model_request,
        call_id,
        snapshot.organization_id,
        endpoint,
        reservation.reservations,
        started_at=started_at,
    )
    try:
        model_request = llm_interface.LanguageModelRequest(
            messages, max_tokens=request.max_answer_tokens
        )
        reply = await llm_interface.build_model(endpoint).request(model_request)
    except Problem as problem:
        await settle_test(outcome="error", usage=None, code=problem.code)
        raise
    except asyncio.CancelledError:
        await asyncio.shield(settle_test(outcome="cancelled", usage=None, code="cancelled"))
        raise
    duration_ms = round((perf_counter() - started_at) * 1000)
    cost = await settle_test(outcome="ok", usage=reply.usage)
    return EndpointTestResult(
        make_visible(reply.text, MAX_ANSWER_SHOWN), duration_ms, reply.usage, cost
    )
