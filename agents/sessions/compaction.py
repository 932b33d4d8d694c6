"""Keep requests within the model's context window.

The window's size comes from the endpoint or the published list of models. If it is unknown and the
provider rejects a request as too long, the conversation is compacted to half and sent once more.
"""

from collections.abc import Sequence

from agents.calls.snapshots import CallSnapshot
from agents.llm import interface as llm_interface
from agents.llm.token_estimates import estimate_tokens
from agents.model_endpoints.request_budget import DEFAULT_ANSWER_TOKENS, correct_estimate
from agents.models import Step
from agents.sessions import step_store
from agents.sessions.compaction_plan import CompactionMarks, FitCheck, plan_compaction
from agents.sessions.history import SessionHistory, load_history
from agents.sessions.leases import SessionLease
from agents.sessions.run_context import RunContext
from agents.sessions.system_prompt import build_instructions, build_tool_specs
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime

# Percent of the window that a request and its answer may use, because counts are estimates.
USABLE_PERCENT = 90
# Percent of the available tokens to compact to, so that not every turn compacts again.
TARGET_PERCENT = 60


class ContextExceeded(Problem):
    """A request doesn't fit into the model's window, even after compaction."""

    code = "context_exceeded"
    status = 422


async def compact_history(
    lease: SessionLease, context: RunContext, history: SessionHistory, snapshot: CallSnapshot
) -> SessionHistory:
    """Return the history, compacted if needed to fit the next model's window.

    Raises `ContextExceeded` if it can't fit.
    """
    endpoint = context.choose_endpoint(history)
    window = endpoint.context_window
    if window is None:
        return history
    answer_tokens = min(endpoint.max_tokens or DEFAULT_ANSWER_TOKENS, window // 4)
    count_request_tokens = _build_counter(context, history, snapshot)
    limit = window * USABLE_PERCENT // 100 - answer_tokens
    if count_request_tokens(history.messages) <= limit:
        return history
    marks = plan_compaction(
        history.entries, history.marks, _build_fit_check(count_request_tokens, limit)
    )
    if marks is not None:
        history = await _save_compaction(lease, history, marks)
    if (needed_tokens := count_request_tokens(history.messages)) > window:
        raise ContextExceeded(
            format_message(
                "The request has about {needed:,} tokens, and the model {title!r} accepts "
                "{window:,}. Everything that can be omitted was omitted.",
                needed=needed_tokens,
                title=endpoint.title,
                window=window,
            ),
            remedy="Send a shorter message, select fewer tools for the agent, shorten its "
            "instructions, or choose a model with a larger context window.",
        )
    return history


async def compact_after_overflow(
    lease: SessionLease, context: RunContext, history: SessionHistory, snapshot: CallSnapshot
) -> bool:
    """Compact a conversation that a provider rejected as too long, once per answer.

    Return whether it was compacted.
    """
    if history.overflow_count != 1:
        return False
    count_request_tokens = _build_counter(context, history, snapshot)
    limit = count_request_tokens(history.messages) // 2
    marks = plan_compaction(
        history.entries, history.marks, lambda messages: count_request_tokens(messages) <= limit
    )
    if marks is None:
        return False
    await _save_compaction(lease, history, marks)
    return True


def _build_counter(
    context: RunContext, history: SessionHistory, snapshot: CallSnapshot
) -> "_TokenCounter":
    tools = snapshot.list_shown_tools(history.found_tools)
    endpoint = context.choose_endpoint(history)
    text = build_instructions(
        context.agent.instructions,
        snapshot,
        context.unavailable_servers,
        (),
        tools,
        native_tools=endpoint.native_tools,
        output_schema=context.get_output_schema(history),
    )
    return _TokenCounter(
        history,
        endpoint,
        estimate_tokens((), text, build_tool_specs(tools)),
    )


class _TokenCounter:
    """Estimates a request's tokens, corrected by the usage that the last turn reported."""

    def __init__(
        self,
        history: SessionHistory,
        endpoint: llm_interface.ModelEndpointConfig,
        fixed_tokens: int,
    ) -> None:
        last_turn = history.last_turn or {}
        is_same_endpoint = (
            last_turn.get("endpoint", {}).get("id") == endpoint.id
        )  # tokenizers differ
        self._last_turn = last_turn if is_same_endpoint else None
        self.fixed_tokens = correct_estimate(fixed_tokens, self._last_turn)

    def __call__(self, messages: Sequence[llm_interface.Message]) -> int:
        return self.fixed_tokens + correct_estimate(estimate_tokens(messages), self._last_turn)


def _build_fit_check(count_request_tokens: _TokenCounter, limit: int) -> FitCheck:
    target = (
        count_request_tokens.fixed_tokens
        + max(0, limit - count_request_tokens.fixed_tokens) * TARGET_PERCENT // 100
    )
    return lambda messages: count_request_tokens(messages) <= target


async def _save_compaction(
    lease: SessionLease, history: SessionHistory, marks: CompactionMarks
) -> SessionHistory:
    """Store the marks in a notice and return the compacted history."""
    digested_count = sum(entry.seq < marks.digested_before for entry in history.entries)
    omitted_count = sum(
        entry.message["role"] == "tool"
        and marks.digested_before <= entry.seq < marks.results_before
        for entry in history.entries
    )
    parts = [f"the first {digested_count} messages are summarized" if digested_count else ""]
    parts.append(f"the results of {omitted_count} later calls are omitted" if omitted_count else "")
    parts.append(f"results have at most {marks.longest:,} characters" if marks.longest else "")
    text = (
        "The conversation is too long for the model, so it was compacted: "
        f"{', '.join(part for part in parts if part)}. The session keeps all messages, and the "
        "agent can read the results again."
    )
    payload = {"code": "compacted", "text": text, "marks": marks.to_dict()}
    await get_runtime().run_orm(step_store.append_step, lease, Step.Kind.NOTICE, payload)
    return await get_runtime().run_orm(load_history, lease.session_id, history.settled_steps)
