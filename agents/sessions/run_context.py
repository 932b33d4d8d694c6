"""The context of a run, and changes of the agent's servers between turns."""

from collections.abc import Mapping
from dataclasses import dataclass
from uuid import UUID

from agents.calls.explain import NoToolsReason, find_no_tools_reason
from agents.calls.root_limits import RootSession
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.llm import interface as llm_interface
from agents.llm.pricing import with_window
from agents.model_endpoints.services import build_endpoint, build_fallback_chain
from agents.models import Agent, Session, WorkflowRun
from agents.models.workflows import DEFAULT_RUN_S
from agents.sessions import step_store
from agents.sessions.history import SessionHistory
from agents.sessions.leases import SessionLease
from agents.sessions.mcp_host import SessionHost
from agents.sessions.model_fallback import NextRequest, find_next_request
from agents.sessions.services import build_principal
from bonobot.accounts.principals import Principal
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Server

CONNECTED, DISCONNECTED = "server_connected", "server_disconnected"
# Server names by id, as stored in steps.
Servers = Mapping[str, str]


@dataclass(frozen=True)
class ServerChange:
    """A server that was connected or disconnected since the last turn."""

    code: str
    server_id: UUID
    text: str

    def as_payload(self) -> dict[str, str]:
        """Return the payload of a notice."""
        return {"code": self.code, "text": self.text}


def list_connected_servers(snapshot: CallSnapshot) -> dict[str, str]:
    """Return the agent's servers that are enabled, both for the agent and globally."""
    return {
        str(server.id): make_visible(server.name, 120)
        for server in snapshot.servers.values()
        if server.enabled and (scope := snapshot.ruling.scopes.get(server.id)) and scope.enabled
    }


def compare_servers(before: Servers | None, now: Servers) -> list[ServerChange]:
    """Return the connected and disconnected servers; empty before the first turn."""
    if before is None:
        return []
    went = [
        ServerChange(
            DISCONNECTED, UUID(key), f"The server {name} was disconnected: its tools are gone."
        )
        for key, name in sorted(before.items(), key=lambda item: item[1])
        if key not in now
    ]
    came = [
        ServerChange(CONNECTED, UUID(key), f"The server {name} was connected: its tools are new.")
        for key, name in sorted(now.items(), key=lambda item: item[1])
        if key not in before
    ]
    return [*went, *came]


@dataclass(frozen=True)
class RunContext:
    """The context of a run, loaded once at its start."""

    session: Session
    agent: Agent
    # The agent's endpoint and its fallbacks.
    line: tuple[llm_interface.ModelEndpointConfig, ...]
    principal: Principal
    unavailable: tuple[str, ...]
    # Why the agent has no tools; None if it has some.
    lack: NoToolsReason | None
    # Answers servers' requests.
    host: SessionHost
    # Set if another session started this one.
    root: RootSession | None = None
    # Whether the session executes a workflow, and the maximum run time in seconds.
    follows: bool = False
    max_run_s: int = 0

    def next(self, past: SessionHistory) -> NextRequest | None:
        """Return the next request after failures; None if no endpoint is left."""
        return find_next_request(
            self.line,
            past.failures,
            answered_by=past.answered_by,
            share=self.session.pk.int % 1000 / 1000,
        )

    def endpoint(self, past: SessionHistory) -> llm_interface.ModelEndpointConfig:
        """Return the endpoint of the next request."""
        asked = self.next(past)
        return asked.endpoint if asked else self.line[0]


def load_run_context(hold: SessionLease) -> RunContext | None:
    """Load the context of a run; None if the session's cancellation was requested."""
    if step_store.is_cancel_requested(hold):
        return None
    whole = Session.objects.select_related("agent__model_endpoint", "workflow_run")
    session = whole.get(pk=hold.session_id)
    agent, run = session.agent, getattr(session, "workflow_run", None)
    snapshot, root = get_snapshot_cache().current("agent", agent.pk), _find_root(session)
    return RunContext(
        session=session,
        agent=agent,
        line=tuple(
            with_window(build_endpoint(one)) for one in build_fallback_chain(agent.model_endpoint)
        ),
        principal=build_principal(session),
        unavailable=tuple(_list_unavailable_servers(snapshot)),
        lack=None if snapshot.offered() else find_no_tools_reason(snapshot),
        host=SessionHost(hold, session, root),
        root=root,
        follows=run is not None,
        max_run_s=_run_s(agent, run),
    )


def _run_s(agent: Agent, run: WorkflowRun | None) -> int:
    said = run.definition.get("max_run_s", DEFAULT_RUN_S) if run else agent.max_run_s
    return int(said)


def _find_root(session: Session) -> RootSession | None:
    if session.root_id is None:
        return None
    first = Session.objects.filter(pk=session.root_id).values_list("agent_id", flat=True).first()
    return RootSession(session.root_id, first) if first else None


def _list_unavailable_servers(snapshot: CallSnapshot) -> list[str]:
    """Return the names of the agent's unavailable servers, with the reason."""
    bound = [UUID(one) for one in list_connected_servers(snapshot)]
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
