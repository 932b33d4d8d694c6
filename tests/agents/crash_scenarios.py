"""Shared code of crash tests: killing processes, and continuing their sessions until they rest.

`TEST_CRASHES=whole` kills at every moment; otherwise at some of them.
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
from bonobot.ledger.models import AuditRow
from tests import factories
from tests.bonobot.ledger.factories import load_organization_balances
from tests.ledger_chain import verify_whole_chain
from tests.parts import ROOT
from tests.processes import build_environment

WHOLE = os.environ.get("TEST_CRASHES") == "whole"
OPEN = (Session.Status.QUEUED, Session.Status.RUNNING)
MAX_ROUNDS = 20  # rounds until a tree of sessions must rest


def choose_kill_points(moments: int, sample_size: int) -> list[tuple[int, bool]]:
    """Return pairs of a moment and a person's answer: all, or an evenly spread sample."""
    points = list(product(range(1, moments + 1), (True, False)))
    return points if WHOLE else points[:: len(points) // sample_size | 1]


class CrashProcess:
    """A process that forks the children to kill; `log_into` sets the folder of their log."""

    def __init__(self) -> None:
        self._log = Path(os.devnull)
        self._awaited = 0
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash_process"],
            cwd=ROOT,
            env=build_environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def log_into(self, folder: Path) -> None:
        """Log the moments of the next child into a folder."""
        self._log = folder / f"moments-{self._process.pid}"

    @property
    def idle(self) -> bool:
        """Whether all its children have ended."""
        return self._awaited == 0 and self._process.poll() is None

    @property
    def passed_moments(self) -> list[str]:
        """The moments that the last child passed."""
        return self._log.read_text().splitlines()

    def start(
        self,
        *sessions: Session,
        at: int = 0,
        sent: int = signal.SIGKILL,
        replay: Replay | None = None,
        alone: bool = False,
    ) -> int:
        """Run sessions up to a moment (0: until they rest); return the child's process id.

        With `alone`, the child doesn't run the child sessions.
        """
        self._log.write_text("")
        command: dict[str, Any] = {
            "sessions": [str(session.pk) for session in sessions],
            "replay": str(replay.pk) if replay else "",
            "alone": alone,
            "at": at,
            "signal": sent,
            "log": str(self._log),
        }
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command) + "\n")
        self._process.stdin.flush()
        self._awaited += 1
        return int(self._read_reply()["pid"])

    def wait(self) -> str:
        """Wait for the end of the child and return its exit status or signal."""
        outcome = str(self._read_reply()["ended"])
        self._awaited -= outcome != "stopped"
        return outcome

    def run(self, *sessions: Session, **more: Any) -> str:
        """Run sessions; return how their process ended."""
        self.start(*sessions, **more)
        return self.wait()

    def resume(self, pid: int) -> str:
        """Continue a stopped process; return how it ended."""
        os.kill(pid, signal.SIGCONT)
        return self.wait()

    def end(self) -> None:
        """Kill the process and its children, which may be stopped."""
        with self._process:
            os.killpg(self._process.pid, signal.SIGKILL)

    def _read_reply(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        reply: dict[str, Any] = json.loads(self._process.stdout.readline())
        return reply


def expire_leases(pid: int | None = None) -> None:
    """Make the heartbeats of all processes, or of one, older than a lease."""
    runners = Runner.objects.all() if pid is None else Runner.objects.filter(pid=pid)
    runners.update(heartbeat_at="2020-01-01T00:00:00Z")


def get_session_tree(root: Session) -> list[Session]:
    """Return a session and all its descendants."""
    return list(Session.objects.filter(Q(pk=root.pk) | Q(root_id=root.pk)).order_by("depth"))


@dataclass
class RunLog:
    """The moments that a tree of sessions passed until its end or the kill."""

    passed_moments: list[str] = field(default_factory=list)
    killed: bool = False

    def __str__(self) -> str:
        return f"killed at {len(self.passed_moments)}, {(self.passed_moments or ['?'])[-1]}"


def run_until_rest(root: Session, processes: CrashProcess, *, approve: bool, at: int = 0) -> RunLog:
    """Run a session until it rests, and answer the requests to people.

    The process that reaches the moment `at` is killed there.
    """
    run_log = RunLog()
    for _ in range(MAX_ROUNDS):
        expire_leases()
        _let_time_pass()
        running = [session for session in get_session_tree(root) if session.status in OPEN]
        if running:
            remaining = 0 if run_log.killed else max(at - len(run_log.passed_moments), 0)
            outcome = processes.run(*running, at=remaining)
            if not run_log.killed:
                run_log.passed_moments += processes.passed_moments
            run_log.killed = run_log.killed or outcome == "SIGKILL"
            assert outcome == "0" or remaining, outcome
        elif not answer_all(root, approve=approve):
            root.refresh_from_db()
            if root.status != Session.Status.WAITING:
                return run_log
    raise AssertionError(f"the session doesn't come to rest: {root.status}, {run_log}")


def kill_at_each_moment(
    start: Callable[[], Session],
    processes: CrashProcess,
    sample_size: int,
    check: Callable[..., None],
) -> None:
    """Kill the session of `start` at each moment, or at a sample, and check each result."""
    session = start()
    run_log = run_until_rest(session, processes, approve=True)
    check(session, "unharmed", approve=True)
    points, killed = choose_kill_points(len(run_log.passed_moments), sample_size), 0
    for at, approve in points:
        session = start()
        run_log = run_until_rest(session, processes, approve=approve, at=at)
        killed += run_log.killed
        check(session, str(run_log), approve=approve)
    # Runs differ slightly: the last moments may come after the end.
    assert killed >= len(points) * 3 // 4


def answer_all(root: Session, *, approve: bool) -> int:
    """Answer the approvals and requests of a tree of sessions; return their number."""
    administrator = factories.build_administrator(root.organization)
    approvals = list(Approval.objects.pending().filter(session__in=get_session_tree(root)))
    for approval in approvals:
        assert approval.code == "call_interrupted", (approval.code, approval.reason)
        resolve_approval(
            administrator, approval, "approve" if approve else "deny", "Remove this field."
        )
    requests = list(ElicitationRequest.objects.pending().filter(session__in=get_session_tree(root)))
    for request in requests:
        elicitations.answer_request(administrator, request, "accept", {"name": "Ada"})
    return len(approvals) + len(requests)


def _let_time_pass() -> None:
    """Make pending calls due and requeue their sessions."""
    PendingCall.objects.filter(next_at__gt=timezone.now()).update(next_at=timezone.now())
    requeue_answered_sessions()


def assert_in_order(root: Session, context: str) -> None:
    """Check that no step of a tree of sessions is lost, doubled or left open."""
    for session in get_session_tree(root):
        steps = list(session.steps.order_by("seq"))
        assert [step.seq for step in steps] == list(range(1, len(steps) + 1)), context
        assert sum(step.kind == Step.Kind.MESSAGE for step in steps) == 1, context
        assert sum(step.kind == Step.Kind.END for step in steps) == 1, context
        assert not [step for step in steps if step.state == Step.State.INTENT], context
    assert_settled(root.organization_id, context)
    assert not PendingCall.objects.filter(closed_at=None).exists(), context


def assert_settled(organization_id: UUID, context: str) -> None:
    """Check that there are no open entries or reservations, and that the chain is valid."""
    assert not AuditRow.objects.running().exists(), context
    assert verify_whole_chain(organization_id).ok, context
    assert all(
        cell.reserved == 0 for cell in load_organization_balances(organization_id).values()
    ), context


def list_calls(root: Session) -> list[Step]:
    """Return the calls of a tree of sessions."""
    return list(
        Step.objects.filter(session__in=get_session_tree(root), kind=Step.Kind.CALL).order_by("pk")
    )
