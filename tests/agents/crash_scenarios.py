"""What tests of crashes share: processes that die, and others that bring to rest what they left.

`TEST_CRASHES=whole` takes every moment; otherwise a test takes some of them.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import Any
from uuid import UUID

from django.db.models import Q
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.elicitations import services as elicitations
from agents.models import Approval, ElicitationRequest, PendingCall, Replay, Runner, Session, Step
from agents.sessions.services import requeue_answered_sessions
from bonobot.ledger.audit.verify_chain import verify_whole_chain
from bonobot.ledger.models import AuditRow
from bonobot.ledger.queries import load_organization_balances
from tests import factories
from tests.parts import ROOT
from tests.processes import environment

WHOLE = os.environ.get("TEST_CRASHES") == "whole"
OPEN = (Session.Status.QUEUED, Session.Status.RUNNING)
TIMES = 20  # that a tree of sessions is taken further before it is given up


def kills(moments: int, few: int) -> list[tuple[int, bool]]:
    """Return moments with a person's answer: all with both, or a few of them spread evenly."""
    every = list(product(range(1, moments + 1), (True, False)))
    return every if WHOLE else every[:: len(every) // few | 1]


class Mortals:
    """A process that forks those which die; `log_into` names the folder of a test's moments."""

    def __init__(self) -> None:
        self._log = Path(os.devnull)
        self._awaited = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_process"],
            cwd=ROOT,
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def log_into(self, folder: Path) -> None:
        """Write the moments of what comes now into a folder."""
        self._log = folder / f"moments-{self._process.pid}"

    @property
    def idle(self) -> bool:
        """Whether all that it has forked have ended."""
        return self._awaited == 0 and self._process.poll() is None

    @property
    def passed(self) -> list[str]:
        """The moments that the last one came by."""
        return self._log.read_text().splitlines()

    def begin(
        self,
        *sessions: Session,
        at: int = 0,
        sent: int = signal.SIGKILL,
        replay: Replay | None = None,
        alone: bool = False,
    ) -> int:
        """Let sessions run up to a moment (0: till they rest); return the process's id.

        One that runs `alone` leaves the sessions that its own begin to others.
        """
        self._log.write_text("")
        order: dict[str, Any] = {
            "sessions": [str(one.pk) for one in sessions],
            "replay": str(replay.pk) if replay else "",
            "alone": alone,
            "at": at,
            "signal": sent,
            "log": str(self._log),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        self._awaited += 1
        return int(self._told()["pid"])

    def ended(self) -> str:
        """Wait for the end of the process and return how it came."""
        ended = str(self._told()["ended"])
        self._awaited -= ended != "stopped"
        return ended

    def run(self, *sessions: Session, **more: Any) -> str:
        """Let sessions run; return how their process ended."""
        self.begin(*sessions, **more)
        return self.ended()

    def wake(self, pid: int) -> str:
        """Let a stopped process go on; return how it ended."""
        os.kill(pid, signal.SIGCONT)
        return self.ended()

    def end(self) -> None:
        """End the process and what it has forked, which may be stopped."""
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _told(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        told: dict[str, Any] = json.loads(self._process.stdout.readline())
        return told


def outlive_the_lease(pid: int | None = None) -> None:
    """Let every heartbeat, or that of one process, be as old as after a lease."""
    dead = Runner.objects.all() if pid is None else Runner.objects.filter(pid=pid)
    dead.update(heartbeat_at="2020-01-01T00:00:00Z")


def tree(root: Session) -> list[Session]:
    """Return a session and all that came of it."""
    return list(Session.objects.filter(Q(pk=root.pk) | Q(root_id=root.pk)).order_by("depth"))


@dataclass
class Way:
    """What a tree of sessions came by on its way to its end, up to the death on it if there was."""

    passed: list[str] = field(default_factory=list)
    killed: bool = False

    def __str__(self) -> str:
        return f"killed at {len(self.passed)}, {(self.passed or ['?'])[-1]}"


def bring_to_rest(root: Session, others: Mortals, *, yes: bool, at: int = 0) -> Way:
    """Let processes take a session to its end, answering what is asked of people.

    The one that comes by the moment `at` of the whole way is killed there.
    """
    way = Way()
    for _ in range(TIMES):
        outlive_the_lease()
        _let_time_pass()
        running = [one for one in tree(root) if one.status in OPEN]
        if running:
            left = 0 if way.killed else max(at - len(way.passed), 0)
            ended = others.run(*running, at=left)
            if not way.killed:
                way.passed += others.passed
            way.killed = way.killed or ended == "SIGKILL"
            assert ended == "0" or left, ended
        elif not answer_all(root, yes=yes):
            root.refresh_from_db()
            if root.status != Session.Status.WAITING:
                return way
    raise AssertionError(f"the session doesn't come to rest: {root.status}, {way}")


def table(
    begin: Callable[[], Session],
    others: Mortals,
    few: int,
    check: Callable[..., None],
) -> None:
    """Kill at each moment of what `begin` begins, or at a few, and check what came of each."""
    session = begin()
    way = bring_to_rest(session, others, yes=True)
    check(session, "unharmed", yes=True)
    every, killed = kills(len(way.passed), few), 0
    for at, yes in every:
        session = begin()
        way = bring_to_rest(session, others, yes=yes, at=at)
        killed += way.killed
        check(session, str(way), yes=yes)
    # Two runs aren't the same to the moment: the last ones may come after the end.
    assert killed >= len(every) * 3 // 4


def answer_all(root: Session, *, yes: bool) -> int:
    """Answer what a tree of sessions asks; return how many questions those were."""
    boss = factories.build_administrator(root.organization)
    approvals = list(Approval.objects.waiting().filter(session__in=tree(root)))
    for question in approvals:
        assert question.code == "call_interrupted", (question.code, question.reason)
        resolve_approval(boss, question, "approve" if yes else "deny", "Remove this field.")
    questions = list(ElicitationRequest.objects.waiting().filter(session__in=tree(root)))
    for one in questions:
        elicitations.answer_request(boss, one, "accept", {"name": "Ada"})
    return len(approvals) + len(questions)


def _let_time_pass() -> None:
    """Let the time come at which tasks are looked at again, and the sweep look for them."""
    PendingCall.objects.filter(next_at__gt=timezone.now()).update(next_at=timezone.now())
    requeue_answered_sessions()


def in_order(root: Session, where: str) -> None:
    """Check that of a tree of sessions nothing is lost, doubled, left open or set aside."""
    for session in tree(root):
        steps = list(session.steps.order_by("seq"))
        assert [one.seq for one in steps] == list(range(1, len(steps) + 1)), where
        assert sum(one.kind == Step.Kind.MESSAGE for one in steps) == 1, where
        assert sum(one.kind == Step.Kind.END for one in steps) == 1, where
        assert not [one for one in steps if one.state == Step.State.INTENT], where
    all_settled(root.organization_id, where)
    assert not PendingCall.objects.filter(closed_at=None).exists(), where


def all_settled(organization_id: UUID, where: str) -> None:
    """Check that everything is accounted for: no open row, nothing reserved, the chain whole."""
    assert not AuditRow.objects.running().exists(), where
    assert verify_whole_chain(organization_id).ok, where
    assert all(
        cell.reserved == 0 for cell in load_organization_balances(organization_id).values()
    ), where


def calls_of(root: Session) -> list[Step]:
    """Return the calls of a tree of sessions."""
    return list(Step.objects.filter(session__in=tree(root), kind=Step.Kind.CALL).order_by("pk"))
