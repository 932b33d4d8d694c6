"""What happens in a county: the calls of its agents, day after day, the same on each run.

An agent works in sessions of ten calls, of one of its servers and three of that one's tools, and
many sessions run at once. It is uneven: a tenth of the agents makes nearly half of the calls, and a
quarter of the tools is used for most of them. Pure, and cheap: it is read twice, by the one who
seals the calls (`audit_writer`) and by the one who counts them (`rollups`), each in a process of
its own.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import NamedTuple

BOUND = 3  # servers of each agent
AT_ONCE = 200  # sessions
LENGTH, VARIETY = 10, 3  # calls of a session, tools in it
# The share of calls that end otherwise, and how; all others go well.
ENDS = (("refused", "tool_denied", 0.03), ("error", "upstream_error", 0.04))
UNKNOWN = ("unknown", "timeout", 0.005)


class End(NamedTuple):
    """How a call ends."""

    outcome: str
    code: str


OK = End("ok", "")
OTHERWISE = tuple((End(outcome, code), share) for outcome, code, share in (*ENDS, UNKNOWN))


@dataclass(frozen=True)
class Plan:
    """Whose calls they are (ids and names), how many, and since when."""

    organization_id: str
    agents: list[tuple[str, str]]
    servers: list[tuple[str, str]]
    tools: list[str]
    rows: int
    began: datetime
    lasted: timedelta


class Call(NamedTuple):
    """One call; `number` is the agent's, `drawn` are 72 bits of chance for its id."""

    at: datetime
    number: int
    agent: tuple[str, str]
    server: tuple[str, str]
    session_id: str
    tool: str
    end: End
    took: int
    drawn: int


class _Session(NamedTuple):
    number: int
    server: int
    tools: list[int]
    id: str


def calls(plan: Plan) -> Iterator[Call]:
    """Yield calls in the order in which they were asked for, the last one of now."""
    chance = random.Random(28)  # noqa: S311  # the same calls on each run
    drawn, bits, wait = chance.random, chance.getrandbits, chance.expovariate
    step = plan.lasted / plan.rows
    sessions = [_session(plan, chance, plan.began) for _ in range(AT_ONCE)]
    left = [int(LENGTH * drawn()) + 1 for _ in range(AT_ONCE)]
    for place in range(plan.rows):
        at, seat = plan.began + place * step, int(AT_ONCE * drawn())
        if not left[seat]:
            sessions[seat], left[seat] = _session(plan, chance, at), LENGTH
        left[seat] -= 1
        one = sessions[seat]
        tool = plan.tools[one.tools[int(VARIETY * drawn())]]
        took = int(wait(1 / 250))
        agent, server = plan.agents[one.number], plan.servers[one.server]
        yield Call(at, one.number, agent, server, one.id, tool, _end(drawn()), took, bits(72))


def given(number: int, servers: int) -> list[int]:
    """Return which servers an agent has, by its number."""
    return [(number * BOUND + more) % servers for more in range(BOUND)]


def _session(plan: Plan, chance: random.Random, at: datetime) -> _Session:
    number = int(len(plan.agents) * chance.random() ** 3)
    server = given(number, len(plan.servers))[int(BOUND * chance.random())]
    tools = [int(len(plan.tools) * chance.random() ** 3) for _ in range(VARIETY)]
    return _Session(number, server, tools, ordered_id(at, chance.getrandbits(72)))


def _end(drawn: float) -> End:
    for end, share in OTHERWISE:
        if drawn < share:
            return end
        drawn -= share
    return OK


def ordered_id(at: datetime, drawn: int) -> str:
    """Return an id of that moment, as `bonobot.core.db.fields` makes them."""
    text = f"{int(at.timestamp() * 1000):012x}7{drawn & 0xFFF:03x}8{drawn >> 12:015x}"
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"
