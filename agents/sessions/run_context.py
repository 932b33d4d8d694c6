"""The context of a run: its agent, model endpoints, servers and limits, loaded at its start."""

from dataclasses import dataclass, field
from typing import Any

from django.db.models import UUIDField

from agents.calls.explain import NoToolsReason
from agents.calls.root_limits import RootSession
from agents.llm import interface as llm_interface
from agents.model_endpoints.services import (
    build_endpoint,
    build_fallback_chain,
    fill_context_window,
)
from agents.models import Agent, Session, WorkflowRun
from agents.models.workflows import DEFAULT_RUN_S
from agents.sessions import step_store
from agents.sessions.connect_servers import ContactPlan, UnavailableServer, load_server_state
from agents.sessions.history import SessionHistory
from agents.sessions.leases import SessionLease
from agents.sessions.mcp_host import SessionHost
from agents.sessions.model_retries_and_fallback import NextRequest, find_next_request
from agents.sessions.services import build_principal, load_token_rate
from bonobot.accounts.principals import Principal
from bonobot.core.db.prepared_queries import PreparedQuery, QueryParameter


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
    contact_plan: ContactPlan = field(default_factory=ContactPlan)
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


_SESSION = PreparedQuery(
    lambda: Session.objects.filter(
        pk=QueryParameter("session", output_field=UUIDField())
    ).select_related("agent__model_endpoint", "model_endpoint", "workflow_run")
)


def load_run_context(lease: SessionLease) -> RunContext | None:
    """Load the context of a run; None if the session's cancellation was requested."""
    if step_store.is_cancel_requested(lease):
        return None
    session: Session | None = _SESSION.fetch_first(session=lease.session_id)
    if session is None:
        raise Session.DoesNotExist
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
