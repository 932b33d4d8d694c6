"""Generate the calls of an organization's agents over some days, the same ones in each run.

Each session of an agent has ten calls of three tools of one server, and many sessions run at once.
A tenth of the agents makes nearly half of the calls, and a quarter of the tools is used for most of
them. The calls are generated twice, by the process that writes the audit log (`audit_writer`) and
by the one that writes the rollups (`rollups`).
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

SERVERS_PER_AGENT = 3  # servers of each agent
CONCURRENT_SESSIONS = 200  # sessions
LENGTH, VARIETY = 10, 3  # calls of a session, tools in it
# Outcomes other than success, with their share of the calls.
ENDS = (("refused", "tool_denied", 0.03), ("error", "upstream_error", 0.04))
UNKNOWN = ("unknown", "timeout", 0.005)


class CallOutcome(NamedTuple):
    """The outcome of a call."""

    outcome: str
    code: str


OK = CallOutcome("ok", "")
OTHER_OUTCOMES = tuple(
    (CallOutcome(outcome, code), share) for outcome, code, share in (*ENDS, UNKNOWN)
)


@dataclass(frozen=True)
class Plan:
    """The IDs and names for the calls, their number, and their period."""

    organization_id: str
    agents: list[tuple[str, str]]
    servers: list[tuple[str, str]]
    tools: list[str]
    rows: int
    began: datetime
    lasted: timedelta


class Call(NamedTuple):
    """A call; `number` is that of the agent, `drawn` are 72 random bits for its ID."""

    at: datetime
    number: int
    agent: tuple[str, str]
    server: tuple[str, str]
    session_id: str
    tool: str
    end: CallOutcome
    took: int
    drawn: int


class _Session(NamedTuple):
    number: int
    server: int
    tools: list[int]
    id: str


def iterate_calls(plan: Plan) -> Iterator[Call]:
    """Yield calls in order of their time; the last one is the newest."""
    chance = random.Random(28)  # noqa: S311  # the same calls on each run
    random_bits, bits, wait = chance.random, chance.getrandbits, chance.expovariate
    step = plan.lasted / plan.rows
    sessions = [_build_session(plan, chance, plan.began) for _ in range(CONCURRENT_SESSIONS)]
    remaining = [int(LENGTH * random_bits()) + 1 for _ in range(CONCURRENT_SESSIONS)]
    for index in range(plan.rows):
        at, seat = plan.began + index * step, int(CONCURRENT_SESSIONS * random_bits())
        if not remaining[seat]:
            sessions[seat], remaining[seat] = _build_session(plan, chance, at), LENGTH
        remaining[seat] -= 1
        item = sessions[seat]
        tool = plan.tools[item.tools[int(VARIETY * random_bits())]]
        elapsed = int(wait(1 / 250))
        agent, server = plan.agents[item.number], plan.servers[item.server]
        yield Call(
            at,
            item.number,
            agent,
            server,
            item.id,
            tool,
            _choose_outcome(random_bits()),
            elapsed,
            bits(72),
        )


def list_server_indexes(number: int, servers: int) -> list[int]:
    """Return the indexes of an agent's servers."""
    return [(number * SERVERS_PER_AGENT + more) % servers for more in range(SERVERS_PER_AGENT)]


def _build_session(plan: Plan, chance: random.Random, at: datetime) -> _Session:
    number = int(len(plan.agents) * chance.random() ** 3)
    server = list_server_indexes(number, len(plan.servers))[
        int(SERVERS_PER_AGENT * chance.random())
    ]
    tools = [int(len(plan.tools) * chance.random() ** 3) for _ in range(VARIETY)]
    return _Session(number, server, tools, build_ordered_id(at, chance.getrandbits(72)))


def _choose_outcome(drawn: float) -> CallOutcome:
    for end, share in OTHER_OUTCOMES:
        if drawn < share:
            return end
        drawn -= share
    return OK


def build_ordered_id(at: datetime, drawn: int) -> str:
    """Return a UUID of version 7 for a time, like `bonobot.core.db.fields`."""
    text = f"{int(at.timestamp() * 1000):012x}7{drawn & 0xFFF:03x}8{drawn >> 12:015x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
