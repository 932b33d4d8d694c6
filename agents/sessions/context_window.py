"""Keep requests within the model's context window.

The window's size comes from the endpoint or the published list of models. If it is unknown and the
provider rejects a request as too long, the conversation is compacted to half and sent once more.
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

# Percent of the window that a request and its answer may use, because counts are estimates.
FILLED = 90
# Percent of the available tokens to compact to, so that not every turn compacts again.
AIM = 60


class ContextExceeded(Problem):
    """A request doesn't fit into the model's window, even after compaction."""

    code = "context_exceeded"
    status = 422


async def compact_history(
    hold: SessionLease, setting: RunContext, past: SessionHistory, snapshot: CallSnapshot
) -> SessionHistory:
    """Return the history, compacted if needed to fit the next model's window.

    Raises `ContextExceeded` if it can't fit.
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
    """Compact a conversation that a provider rejected as too long, once per answer.

    Return whether it was compacted.
    """
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
    """Estimates a request's tokens, corrected by the usage that the last turn reported."""

    def __init__(
        self, past: SessionHistory, endpoint: llm_interface.ModelEndpointConfig, fixed: int
    ) -> None:
        last = past.last_turn or {}
        same = last.get("endpoint", {}).get("id") == endpoint.id  # tokenizers differ
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
    """Store the marks in a notice and return the compacted history."""
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
