"""Keep requests in the model's window.

How large the window is, the endpoint says, or the published list of models. Where neither does, the
provider's own refusal is the sign: the conversation is compacted to half and sent again, once.
"""

from collections.abc import Sequence

from agents.calls.snapshots import CallSnapshot
from agents.llm import interface as llm_interface
from agents.llm.pricing import estimate_tokens
from agents.model_endpoints.request_budget import ANSWER_TOKENS, correct_estimate
from agents.models import Step
from agents.sessions import step_store
from agents.sessions.compaction import CompactionMarks, Fits, plan
from agents.sessions.history import SessionHistory, load_history
from agents.sessions.leases import SessionLease
from agents.sessions.run_context import RunContext
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime

# Of the window, in percent: what a request may fill beside its answer, for counts are estimates.
FILLED = 90
# A compacted conversation takes this share of the room there is, so that it isn't done every turn.
AIM = 60


class ContextExceeded(Problem):
    """Even with all left out that can be, a request doesn't fit into the model's window."""

    code = "context_exceeded"
    status = 422


async def compact_history(
    hold: SessionLease, setting: RunContext, past: SessionHistory, snapshot: CallSnapshot
) -> SessionHistory:
    """Return the past as it fits into the window of the model that is asked next.

    Raises `ContextExceeded` where it never will.
    """
    endpoint = setting.endpoint(past)
    window = endpoint.context_window
    if window is None:
        return past
    answer = min(endpoint.max_tokens or ANSWER_TOKENS, window // 4)
    counted = _build_counter(setting, past, snapshot)
    limit = window * FILLED // 100 - answer
    if counted(past.messages) <= limit:
        return past
    marks = plan(past.entries, past.marks, _build_fit_check(counted, limit))
    if marks is not None:
        past = await _save_compaction(hold, past, marks)
    if (needed := counted(past.messages)) > window:
        raise ContextExceeded(
            format_message(
                "The request has about {needed:,} tokens, and the model "
                "{title!r} takes {window:,}, although all was left out that can "
                "be.",
                needed=needed,
                title=endpoint.title,
                window=window,
            ),
            remedy="Send a shorter message, give the agent fewer tools or shorter instructions, or "
            "choose a model with a larger window.",
        )
    return past


async def compact_after_overflow(
    hold: SessionLease, setting: RunContext, past: SessionHistory, snapshot: CallSnapshot
) -> bool:
    """Compact what a provider found too long, once for an answer; tell whether that was done."""
    if past.overflows != 1:
        return False
    counted = _build_counter(setting, past, snapshot)
    limit = counted(past.messages) // 2
    marks = plan(past.entries, past.marks, lambda messages: counted(messages) <= limit)
    if marks is None:
        return False
    await _save_compaction(hold, past, marks)
    return True


def _build_counter(
    setting: RunContext, past: SessionHistory, snapshot: CallSnapshot
) -> "_TokenCounter":
    tools = snapshot.shown(past.found)
    text = build_instructions(setting.agent.instructions, snapshot, setting.unavailable, (), tools)
    return _TokenCounter(
        past, setting.endpoint(past), estimate_tokens((), text, build_tool_specs(tools))
    )


class _TokenCounter:
    """Counts the tokens of a request by its messages, raised as the last answer told."""

    def __init__(
        self, past: SessionHistory, endpoint: llm_interface.ModelEndpointConfig, fixed: int
    ) -> None:
        last = past.last_turn or {}
        same = last.get("endpoint", {}).get("id") == endpoint.id  # others count in their own way
        self._last = last if same else None
        self.fixed = correct_estimate(fixed, self._last)

    def __call__(self, messages: Sequence[llm_interface.Message]) -> int:
        return self.fixed + correct_estimate(estimate_tokens(messages), self._last)


def _build_fit_check(counted: _TokenCounter, limit: int) -> Fits:
    aim = counted.fixed + max(0, limit - counted.fixed) * AIM // 100
    return lambda messages: counted(messages) <= aim


async def _save_compaction(
    hold: SessionLease, past: SessionHistory, marks: CompactionMarks
) -> SessionHistory:
    """Write what is left out from now on, for people and for whoever takes over."""
    told = sum(one.seq < marks.told_before for one in past.entries)
    results = sum(
        one.message["role"] == "tool" and marks.told_before <= one.seq < marks.results_before
        for one in past.entries
    )
    parts = [f"the first {told} messages are told in short" if told else ""]
    parts.append(f"the results of {results} later calls are left out" if results else "")
    parts.append(f"results have at most {marks.longest:,} characters" if marks.longest else "")
    text = (
        "The conversation grew too long for the model: "
        f"{', '.join(part for part in parts if part)}. Nothing is lost here, and the agent can "
        "read results again."
    )
    payload = {"code": "compacted", "text": text, "marks": marks.as_dict()}
    await get_runtime().orm(step_store.append, hold, Step.Kind.NOTICE, payload)
    return await get_runtime().orm(load_history, hold.session_id, past.settled)
