"""Keeping a request within its model's context window: compact before it is sent, or refuse.

How large the window is, the endpoint says, or the published list of models. Where neither does, the
provider's own refusal is the sign: the conversation is compacted to half and sent again, once.
"""

from collections.abc import Sequence

from agents.governance.snapshots import Snapshot
from agents.llm import port
from agents.llm.prices import estimate_tokens
from agents.models import Step
from agents.sessions import rows
from agents.sessions.compacting import Fits, Marks, plan
from agents.sessions.past import History, history
from agents.sessions.prompts import instructions, specs
from agents.sessions.reserving import ANSWER_TOKENS, corrected
from agents.sessions.runners import Hold
from agents.sessions.setting import Setting
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say

# Of the window, in percent: what a request may fill beside its answer, for counts are estimates.
FILLED = 90
# A compacted conversation takes this share of the room there is, so that it isn't done every turn.
AIM = 60


class ContextExceeded(Problem):
    """Even with all left out that can be, a request doesn't fit into the model's window."""

    code = "context_exceeded"
    status = 422


async def within_window(hold: Hold, setting: Setting, past: History, snapshot: Snapshot) -> History:
    """Return the past as it fits into the window of the model that is asked next.

    Raises `ContextExceeded` where it never will.
    """
    endpoint = setting.endpoint(past)
    window = endpoint.context_window
    if window is None:
        return past
    answer = min(endpoint.max_tokens or ANSWER_TOKENS, window // 4)
    counted = _counter(setting, past, snapshot)
    limit = window * FILLED // 100 - answer
    if counted(past.messages) <= limit:
        return past
    marks = plan(past.entries, past.marks, _aims_at(counted, limit))
    if marks is not None:
        past = await _written(hold, past, marks)
    if (needed := counted(past.messages)) > window:
        raise ContextExceeded(
            say(
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


async def after_overflow(hold: Hold, setting: Setting, past: History, snapshot: Snapshot) -> bool:
    """Compact what a provider found too long, once for an answer; tell whether that was done."""
    if past.overflows != 1:
        return False
    counted = _counter(setting, past, snapshot)
    limit = counted(past.messages) // 2
    marks = plan(past.entries, past.marks, lambda messages: counted(messages) <= limit)
    if marks is None:
        return False
    await _written(hold, past, marks)
    return True


def _counter(setting: Setting, past: History, snapshot: Snapshot) -> "_Counter":
    tools = snapshot.shown(past.found)
    text = instructions(setting.agent.instructions, snapshot, setting.unavailable, (), tools)
    return _Counter(past, setting.endpoint(past), estimate_tokens((), text, specs(tools)))


class _Counter:
    """Counts the tokens of a request by its messages, raised as the last answer told."""

    def __init__(self, past: History, endpoint: port.Endpoint, fixed: int) -> None:
        last = past.last_turn or {}
        same = last.get("endpoint", {}).get("id") == endpoint.id  # others count in their own way
        self._last = last if same else None
        self.fixed = corrected(fixed, self._last)

    def __call__(self, messages: Sequence[port.Message]) -> int:
        return self.fixed + corrected(estimate_tokens(messages), self._last)


def _aims_at(counted: _Counter, limit: int) -> Fits:
    aim = counted.fixed + max(0, limit - counted.fixed) * AIM // 100
    return lambda messages: counted(messages) <= aim


async def _written(hold: Hold, past: History, marks: Marks) -> History:
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
    await runtime().orm(rows.append, hold, Step.Kind.NOTICE, payload)
    return await runtime().orm(history, hold.session_id, past.settled)
