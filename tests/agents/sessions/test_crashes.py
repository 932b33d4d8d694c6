"""Crashes: a runner is killed, or stopped beyond its lease, at each moment of a session (X6).

What was done is counted by the upstream itself. `TEST_CRASHES=whole` takes every moment, otherwise
one of five.
"""

import json
import os
import signal
import subprocess
import sys
from collections import Counter

import pytest

from agents.approvals import answer
from agents.models import Agent, Approval, Budget, Runner, Session, Step
from agents.sessions import requests
from bonobot.ledger.models import AuditRow
from bonobot.ledger.usage import cells
from bonobot.ledger.verify import verify
from bonobot.lib.runtime import runtime
from mcp_servers.connections.pool import connections
from tests.agents import casting
from tests.parts import ROOT
from tests.processes import environment

pytestmark = pytest.mark.django_db(transaction=True)

# Three calls at once: two that charge, one that may be repeated.
PLAN = "\n".join(
    (
        '/mcp_counting_charge {"key": "one"}',
        '/mcp_counting_get_balance {"key": "two"}',
        '/mcp_counting_charge {"key": "three"}',
    )
)
# What is done one after the other leaves no transaction open at a moment when nothing else does.
ONE = '/mcp_counting_charge {"key": "one"}'
WHOLE = os.environ.get("TEST_CRASHES") == "whole"
EACH = 1 if WHOLE else 5
# As many moments as such a session has; the last ones may come after its end.
MOMENTS = 58
MOMENTS_OF_ONE = 32


class Mortals:
    """A process that forks those which die."""

    def __init__(self, folder):
        self._folder = folder
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.mortal"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.passed = []

    def run(self, session, at=0, sent=signal.SIGKILL):
        """Run a session up to a moment; return how the process ended, and its id."""
        log = self._folder / "moments"
        log.write_text("")
        order = {"session": str(session.pk), "at": at, "signal": sent, "log": str(log)}
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        pid = self._told()["pid"]
        ended = self._told()["ended"]
        self.passed = log.read_text().splitlines()
        return ended, pid

    def wake(self, pid):
        """Let a stopped process go on; return how it ended."""
        os.kill(pid, signal.SIGCONT)
        return self._told()["ended"]

    def end(self):
        """End the process and what it has forked, which may be stopped."""
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _told(self):
        return json.loads(self._process.stdout.readline())


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """The file in which the upstream counts."""
    return tmp_path_factory.mktemp("counting") / "calls"


@pytest.fixture(scope="module")
def counting_url(written):
    command = [sys.executable, str(ROOT / "tests" / "servers" / "counting.py"), str(written)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield f"http://127.0.0.1:{server.stdout.readline().split()[1]}/mcp"
        finally:
            server.terminate()


@pytest.fixture
def counting(acme, helper, counting_url, written):
    written.write_text("")
    Agent.objects.filter(pk=helper.pk).update(calls_per_minute=100_000)
    server = casting.ready(acme, casting.http_server(acme, counting_url, "counting"), helper)
    Budget.objects.create(
        organization=acme, agent=helper, unit="calls", period="total", limit=1_000
    )
    yield server
    runtime().call(connections().forget, server.pk)


@pytest.fixture
def mortals(counting, tmp_path):
    """A function that makes processes whose children die."""
    made = []

    def make():
        made.append(Mortals(tmp_path))
        return made[-1]

    yield make
    for one in made:
        one.end()


def outlive_the_lease():
    """Let every heartbeat be as old as after a lease."""
    Runner.objects.update(beat_at="2020-01-01T00:00:00Z")


def bring_to_rest(session, others, *, yes):
    """Let other processes take the session to its end, answering what is asked of people."""
    for _ in range(10):
        outlive_the_lease()
        ended, _ = others.run(session)
        assert ended == "0"
        session.refresh_from_db()
        if session.status != Session.Status.WAITING:
            return
        for question in Approval.objects.waiting().filter(session=session):
            assert question.code == "call_interrupted"
            boss = casting.administrator(session.organization)
            answer(boss, question, "approve" if yes else "deny", "Leave it.")
    raise AssertionError("the session doesn't come to rest")


def check(session, written, *, yes, where, plan=PLAN):
    """Check that nothing was lost, nothing doubled, and everything is accounted for."""
    done = Counter(written.read_text().splitlines())
    steps = list(session.steps.order_by("seq"))
    of = {kind: [one for one in steps if one.kind == kind] for kind in Step.Kind.values}
    assert session.status == Session.Status.DONE, where
    assert [one.seq for one in steps] == list(range(1, len(steps) + 1)), where
    assert [one.payload["text"] for one in of["message"]] == [plan], where
    assert len(of["end"]) == 1, where
    assert not [one for one in steps if one.state == Step.State.INTENT], where
    asked = Approval.objects.filter(session=session).count()
    for step in of["call"]:
        tool, key = step.payload["name"].removeprefix("mcp_counting_"), step.payload["arguments"]
        count = done[f"{tool} {key['key']}"]
        if step.state == Step.State.DONE:
            assert count >= 1, where
        if tool == "get_balance":
            assert (step.state, count <= 2) == (Step.State.DONE, True), where
        else:
            assert count <= (2 if yes and asked else 1), where
    assert len(of["call"]) == len(plan.splitlines()), where
    assert not AuditRow.objects.running().exists(), where
    assert verify(session.organization_id).ok, where
    assert all(cell.reserved == 0 for cell in cells(session.organization_id).values()), where


def begun(acme, helper, written, plan=PLAN):
    written.write_text("")
    return requests.start(casting.administrator(acme), helper, plan)


@pytest.mark.parametrize("first", range(1, EACH + 1) if WHOLE else [2])
def test_a_killed_runner_loses_nothing_and_repeats_no_charge(acme, helper, written, mortals, first):
    killed = 0
    victims = mortals()
    for at in range(first, MOMENTS + 1, EACH):
        session = begun(acme, helper, written)
        ended, _ = victims.run(session, at)
        killed += ended == "SIGKILL"
        where = f"killed at {at}, {(victims.passed or ['?'])[-1]}"
        bring_to_rest(session, victims, yes=bool(at % 2))
        check(session, written, yes=bool(at % 2), where=where)
    assert killed >= MOMENTS // EACH - 2


def test_a_stopped_runner_that_wakes_after_its_lease_does_nothing_more(
    acme, helper, written, mortals
):
    sleepers, others = mortals(), mortals()
    stopped = 0
    for at in range(min(3, EACH), MOMENTS_OF_ONE + 1, EACH):
        session = begun(acme, helper, written, ONE)
        ended, pid = sleepers.run(session, at, signal.SIGSTOP)
        where = f"stopped at {at}, {(sleepers.passed or ['?'])[-1]}"
        if ended == "stopped":
            stopped += 1
            bring_to_rest(session, others, yes=False)
            assert sleepers.wake(pid) == "0", where
            session.refresh_from_db()
        check(session, written, yes=False, where=where, plan=ONE)
    assert stopped >= MOMENTS_OF_ONE // EACH - 2
