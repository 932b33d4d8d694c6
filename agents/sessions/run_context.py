"""The context of a run, and changes of the agent's servers between turns."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from types import MappingProxyType
from typing import Any
from uuid import UUID

from django.utils import timezone

from agents.calls.definitions import ServerFacts
from agents.calls.explain import NoToolsReason, find_no_tools_reason
from agents.calls.root_limits import RootSession
from agents.calls.snapshots import CallSnapshot, get_snapshot_cache
from agents.llm import interface as llm_interface
from agents.llm.pricing import fill_context_window
from agents.model_endpoints.services import build_endpoint, build_fallback_chain
from agents.models import Agent, Session, WorkflowRun
from agents.models.workflows import DEFAULT_RUN_S
from agents.sessions import step_store
from agents.sessions.history import SessionHistory
from agents.sessions.leases import SessionLease
from agents.sessions.mcp_host import SessionHost
from agents.sessions.model_retries_and_fallback import NextRequest, find_next_request
from agents.sessions.services import build_principal, load_token_rate
from bonobot.accounts.principals import Principal
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.models import Server
from mcp_servers.refresh_definitions import is_catalog_expired

CONNECTED, DISCONNECTED = "server_connected", "server_disconnected"
# Server names by id, as stored in steps.
ServerNames = Mapping[str, str]
# The reason of a server that didn't respond within `BONOBOT_SESSION_CONNECT_S`.
NO_RESPONSE = "no_response"
# Failed servers are tried again by runs at most this often; health checks try them, too.
RETRY_INTERVAL = timedelta(minutes=1)
FAILED_STATUSES = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)


@dataclass(frozen=True)
class ServerChange:
    """A server that was connected or disconnected since the last turn."""

    code: str
    server_id: UUID
    text: str

    def to_payload(self) -> dict[str, str]:
        """Return the payload of a notice."""
        return {"code": self.code, "text": self.text}


def list_connected_servers(snapshot: CallSnapshot) -> dict[str, str]:
    """Return the agent's servers that are enabled, both for the agent and globally."""
    return {
        str(server.id): make_visible(server.name, 120)
        for server in snapshot.servers.values()
        if server.enabled
        and (scope := snapshot.effective_policy.scopes.get(server.id))
        and scope.enabled
    }


def compare_servers(previous: ServerNames | None, current: ServerNames) -> list[ServerChange]:
    """Return the connected and disconnected servers; empty before the first turn."""
    if previous is None:
        return []
    disconnected = [
        ServerChange(
            DISCONNECTED,
            UUID(server_id),
            format_message(
                "The server {name} was disconnected. Its tools are no longer available.", name=name
            ),
        )
        for server_id, name in sorted(previous.items(), key=lambda item: item[1])
        if server_id not in current
    ]
    connected = [
        ServerChange(
            CONNECTED,
            UUID(server_id),
            format_message("The server {name} was connected. Its tools are available.", name=name),
        )
        for server_id, name in sorted(current.items(), key=lambda item: item[1])
        if server_id not in previous
    ]
    return [*disconnected, *connected]


@dataclass(frozen=True)
class UnavailableServer:
    """A server that is unavailable to a run: `reason` is `NO_RESPONSE`, a code, or a phrase."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True)
class ContactPlan:
    """The servers to contact when a run starts: to connect, and to refresh."""

    to_connect: tuple[ServerFacts, ...] = ()
    to_refresh: tuple[UUID, ...] = ()


@dataclass(frozen=True)
class ServerState:
    """What is known about the agent's servers before or after they were contacted."""

    unavailable_servers: tuple[UnavailableServer, ...]
    # Why the agent has no tools; None if it has some.
    no_tools_reason: NoToolsReason | None
    contact_plan: ContactPlan
    opens_mcp_sessions: bool


@dataclass(frozen=True)
class RunContext:
    """The context of a run, loaded once at its start."""

    session: Session
    agent: Agent
    # The endpoint of the session, or else of the agent, and its fallbacks.
    endpoints: tuple[llm_interface.ModelEndpointConfig, ...]
    principal: Principal
    unavailable_servers: tuple[UnavailableServer, ...]
    # Why the agent has no tools; None if it has some.
    no_tools_reason: NoToolsReason | None
    # Answers servers' requests.
    host: SessionHost
    # Set if another session started this one.
    root: RootSession | None = None
    contact_plan: ContactPlan = ContactPlan()
    # Whether calls may open MCP sessions over HTTP.
    opens_mcp_sessions: bool = False
    # Whether the session executes a workflow, and the maximum run time in seconds.
    follows_workflow: bool = False
    max_run_s: int = 0

    def find_next_request(self, history: SessionHistory) -> NextRequest | None:
        """Return the next request after failures; None if no endpoint is left."""
        return find_next_request(
            self.endpoints,
            history.failures,
            answered_by=history.answered_by,
            jitter_share=self.session.pk.int % 1000 / 1000,
        )

    def get_output_schema(self, history: SessionHistory) -> dict[str, Any] | None:
        """Return the schema of the answer to the message in progress; None if it has none."""
        return history.output_schema or self.agent.output_schema or None

    def choose_endpoint(self, history: SessionHistory) -> llm_interface.ModelEndpointConfig:
        """Return the endpoint of the next request."""
        next_request = self.find_next_request(history)
        return next_request.endpoint if next_request else self.endpoints[0]


def load_run_context(lease: SessionLease) -> RunContext | None:
    """Load the context of a run; None if the session's cancellation was requested."""
    if step_store.is_cancel_requested(lease):
        return None
    sessions = Session.objects.select_related(
        "agent__model_endpoint", "model_endpoint", "workflow_run"
    )
    session = sessions.get(pk=lease.session_id)
    session.token_calls_per_minute = load_token_rate(session)
    agent, run = session.agent, getattr(session, "workflow_run", None)
    state, root = load_server_state(agent), _find_root(session)
    return RunContext(
        session=session,
        agent=agent,
        endpoints=tuple(
            fill_context_window(build_endpoint(model_endpoint))
            for model_endpoint in build_fallback_chain(session.effective_endpoint)
        ),
        principal=build_principal(session),
        unavailable_servers=state.unavailable_servers,
        no_tools_reason=state.no_tools_reason,
        contact_plan=state.contact_plan,
        opens_mcp_sessions=state.opens_mcp_sessions,
        host=SessionHost(lease, session, root),
        root=root,
        follows_workflow=run is not None,
        max_run_s=_get_max_run_time(agent, run),
    )


def _get_max_run_time(agent: Agent, run: WorkflowRun | None) -> int:
    seconds = run.definition.get("max_run_s", DEFAULT_RUN_S) if run else agent.max_run_s
    return int(seconds)


def _find_root(session: Session) -> RootSession | None:
    if session.root_id is None:
        return None
    root_agent_id = (
        Session.objects.filter(pk=session.root_id).values_list("agent_id", flat=True).first()
    )
    return RootSession(session.root_id, root_agent_id) if root_agent_id else None


def load_server_state(
    agent: Agent, failures: Mapping[UUID, str] = MappingProxyType({})
) -> ServerState:
    """Load the state of the agent's servers; `failures` are reasons known from this run."""
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    callable_tools = snapshot.list_callable_tools()
    server_ids = [UUID(server_id) for server_id in list_connected_servers(snapshot)]
    servers = (
        list(
            Server.objects.filter(pk__in=server_ids)
            .select_related("change_subscription")
            .order_by("name")
        )
        if server_ids
        else []
    )
    in_use = {tool.facts.server_id for tool in callable_tools}
    endpoints = [snapshot.servers[server.pk].endpoint for server in servers]
    return ServerState(
        unavailable_servers=tuple(_list_unavailable_servers(servers, failures)),
        no_tools_reason=None if callable_tools else find_no_tools_reason(snapshot),
        contact_plan=ContactPlan(
            to_connect=tuple(
                snapshot.servers[server.pk]
                for server in servers
                if server.pk in in_use and _needs_connection(server)
            ),
            to_refresh=tuple(server.pk for server in servers if _needs_refresh(server)),
        ),
        opens_mcp_sessions=any(
            endpoint.transport == "http" and (endpoint.era != "modern" or endpoint.allowed_requests)
            for endpoint in endpoints
        ),
    )


def _needs_connection(server: Server) -> bool:
    """Return whether calls need a connection that takes a handshake."""
    return (
        server.transport_type == Server.Transport.HTTP
        and server.era == "handshake"
        and server.status not in FAILED_STATUSES
    )


def _needs_refresh(server: Server) -> bool:
    """Return whether the server has to be discovered, which also shows if it works again."""
    if server.status in FAILED_STATUSES:
        is_due = server.checked_at is None or timezone.now() - server.checked_at > RETRY_INTERVAL
        return is_due and server.status == Server.Status.ERROR
    return is_catalog_expired(server)


def _list_unavailable_servers(
    servers: Iterable[Server], failures: Mapping[UUID, str]
) -> Iterator[UnavailableServer]:
    """Yield the unavailable servers, with the reason."""
    for server in servers:
        is_known = server.discovered_at is not None
        if server.status in FAILED_STATUSES:
            yield UnavailableServer(server.name, server.status_code or "not discovered yet")
        elif server.pk in failures or not is_known:
            yield UnavailableServer(server.name, failures.get(server.pk, "not discovered yet"))
