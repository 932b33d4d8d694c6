"""The setting of a run: what it needs of its rows, read once at its start."""

from dataclasses import dataclass
from uuid import UUID

from agents.endpoint_rules import chain, endpoint_of
from agents.governance.lacking import Lack, lack_of
from agents.governance.roots import Root
from agents.governance.snapshots import Snapshot, snapshots
from agents.llm import port
from agents.llm.prices import with_window
from agents.models import Agent, Session, WorkflowRun
from agents.sessions import rows
from agents.sessions.acting import principal_of
from agents.sessions.connected import connected
from agents.sessions.host import SessionHost
from agents.sessions.past import History
from agents.sessions.retrying import Next, next_request
from agents.sessions.runners import Hold
from agents.workflows.definitions import DEFAULT_RUN_S
from bonobot.tenancy.principals import Principal
from mcp_servers.models import Server


@dataclass(frozen=True)
class Setting:
    """What a run needs of its rows, read once at its start."""

    session: Session
    agent: Agent
    # The agent's endpoint, and those that are asked after it.
    line: tuple[port.Endpoint, ...]
    principal: Principal
    unavailable: tuple[str, ...]
    # Why it has no tools; None where it has some.
    lack: Lack | None
    # Answers what servers ask back.
    host: SessionHost
    # There where another session began this one.
    root: Root | None = None
    # Whether it follows a workflow, and how long it may run.
    follows: bool = False
    max_run_s: int = 0

    def next(self, past: History) -> Next | None:
        """Return who is asked after what failed, and when; None where nobody is left."""
        return next_request(
            self.line,
            past.failures,
            answered_by=past.answered_by,
            share=self.session.pk.int % 1000 / 1000,
        )

    def endpoint(self, past: History) -> port.Endpoint:
        """Return the endpoint that the next request goes to."""
        asked = self.next(past)
        return asked.endpoint if asked else self.line[0]


def setting_of(hold: Hold) -> Setting | None:
    """Read what a run needs; None where somebody wants the session cancelled."""
    if rows.wants_cancel(hold):
        return None
    whole = Session.objects.select_related("agent__model_endpoint", "workflow_run")
    session = whole.get(pk=hold.session_id)
    agent, run = session.agent, getattr(session, "workflow_run", None)
    snapshot, root = snapshots().current("agent", agent.pk), _root(session)
    return Setting(
        session=session,
        agent=agent,
        line=tuple(with_window(endpoint_of(one)) for one in chain(agent.model_endpoint)),
        principal=principal_of(session),
        unavailable=tuple(_unavailable(snapshot)),
        lack=None if snapshot.offered() else lack_of(snapshot),
        host=SessionHost(hold, session, root),
        root=root,
        follows=run is not None,
        max_run_s=_run_s(agent, run),
    )


def _run_s(agent: Agent, run: WorkflowRun | None) -> int:
    said = run.definition.get("max_run_s", DEFAULT_RUN_S) if run else agent.max_run_s
    return int(said)


def _root(session: Session) -> Root | None:
    if session.root_id is None:
        return None
    first = Session.objects.filter(pk=session.root_id).values_list("agent_id", flat=True).first()
    return Root(session.root_id, first) if first else None


def _unavailable(snapshot: Snapshot) -> list[str]:
    """Name the agent's servers that don't answer now, and why (FEATURES A7)."""
    bound = [UUID(one) for one in connected(snapshot)]
    if not bound:
        return []
    found = Server.objects.filter(pk__in=bound).order_by("name")
    troubled = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
    return [
        f"{name} ({code or 'not discovered yet'})"
        for name, status, code, discovered_at in found.values_list(
            "name", "status", "status_code", "discovered_at"
        )
        if status in troubled or discovered_at is None
    ]
