"""Create what tests need: organizations, members, agents, servers; by the real services."""

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from agents import services as agent_services
from agents.elicitations.forms import parse_elicitation
from agents.elicitations.services import ElicitationOrigin, create_request
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import (
    Agent,
    Approval,
    ElicitationRequest,
    ModelEndpoint,
    Session,
    Step,
    Trigger,
    Workflow,
)
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, attach_server
from agents.sessions.services import start_session
from agents.workflows.services import WorkflowSpec, save_workflow
from agents.workflows.triggers import TriggerSpec, save_trigger
from bonobot.accounts.external_issuers import services as external_issuers
from bonobot.accounts.models import Issuer, Membership, Organization, Provider, User
from bonobot.accounts.principals import Principal, build_cli_principal, build_user_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.sso import services as sso
from bonobot.core.runtime import get_runtime
from bonobot.notifications.models import Notification
from bonobot.notifications.notify import NotificationSubject, build_notification
from bonobot.notifications.services import NotificationChannelSpec, save_channel
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests.parts import ROOT

CLOCK = ROOT / "tests" / "servers" / "clock.py"


def create_organization(slug: str = "acme") -> Organization:
    """Create an organization."""
    made: Organization = Organization.objects.create(name=slug.title(), slug=slug)
    return made


def create_member(where: Organization, role: Role, name: str = "") -> Principal:
    """Create a member with a role and return their principal."""
    user = User.objects.create_user(name or f"{role}-{where.slug}", password="pw-for-tests")
    Membership.objects.create(organization=where, user=user, role=role)
    return build_user_principal(user, where)


def build_administrator(where: Organization) -> Principal:
    """Return the platform administrator's principal."""
    return build_cli_principal(where)


def create_agent(
    where: Organization, slug: str = "helper", mode: str = "all", **more: Any
) -> Agent:
    """Create an agent with the offline model and a policy mode."""
    boss = build_administrator(where)
    endpoint = ModelEndpoint.objects.filter(organization=where).first() or save_endpoint(
        boss, ModelEndpointSpec(name="Offline", kind="offline", model="offline")
    )
    made = agent_services.create_agent(
        boss, AgentSpec(name=slug.title(), slug=slug, model_endpoint=endpoint, **more)
    )
    set_policy(boss, made, PolicySpec(mode))
    return made


def create_stdio_server(
    where: Organization, name: str = "time", *, from_pypi: bool = False
) -> Server:
    """Register a stdio server that tells the time; the real one takes 20 times as long to start."""
    args = ["-m", "mcp_server_time"] if from_pypi else [str(CLOCK)]
    return create_server(
        build_administrator(where),
        ServerSpec(
            name=name,
            transport_type="stdio",
            endpoint_config={"command": sys.executable, "args": args},
        ),
    )


def create_http_server(where: Organization, url: str, name: str = "web") -> Server:
    """Register an HTTP server on the loopback."""
    return create_server(
        build_administrator(where),
        ServerSpec(
            name=name, transport_type="http", endpoint_config={"url": url}, allow_private=True
        ),
    )


def create_notification(where: Organization, name: str = "Pager") -> Notification:
    """Create a channel that can't deliver, with a pending notification."""
    spec = NotificationChannelSpec(name, "webhook", url="https://hooks.example.com/x")
    channel, _secret = save_channel(build_administrator(where), spec)
    made = build_notification(
        channel, "server_down", NotificationSubject("mcp_server", "1", "web"), "Away.", topic="t"
    )
    made.save()
    return made


def create_issuer(where: Organization, url: str, name: str = "Login", **more: Any) -> Issuer:
    """Create an external issuer with a unique name and URL."""
    return external_issuers.create_issuer(build_administrator(where), name=name, url=url, **more)


def create_provider(where: Organization, url: str, name: str = "Login", **more: Any) -> Provider:
    """Create an identity provider."""
    said = {"client_id": "bonobot"} | more
    return sso.create_provider(build_administrator(where), name=name, url=url, **said)


def approve_server(where: Organization, server: Server, *agents: Agent) -> Server:
    """Discover a server, approve its definitions and attach it to agents."""
    boss = build_administrator(where)
    get_runtime().call(run_discovery, server.pk, actor=boss.actor)
    approve_definitions(boss, server)
    for one in agents:
        attach_server(boss, one, server)
    server.refresh_from_db()
    return server


def create_workflow(of: Agent, name: str = "tell", *, hooks: int = 0, **more: Any) -> Workflow:
    """Create a workflow of one call that needs no server, and attach it to its agent."""
    source = (
        f"agent: {of.slug}\nsteps:\n  - {{id: look, call: read_skill, arguments: {{name: x}}}}\n"
    )
    spec = WorkflowSpec(**{"name": name, "source": source, "agents": [of.slug]} | more)
    made = save_workflow(build_administrator(of.organization), spec)
    for number in range(hooks):
        create_trigger(made, f"hook{number}")
    return made


def create_trigger(of: Workflow, name: str = "alerts") -> Trigger:
    """Create a webhook trigger of a workflow."""
    spec = TriggerSpec(name=name, kind="webhook")
    return save_trigger(build_administrator(of.organization), of, spec)[0]


def create_approval(of: Agent, session: Session | None = None, **more: Any) -> Approval:
    """Create a pending approval of a call that the command line requested."""
    boss = build_administrator(of.organization)
    values: dict[str, Any] = {
        "label": "mcp_web_add",
        "own_name": "add",
        "arguments": {"a": 1},
        "arguments_digest": "a" * 64,
        "rules_digest": "r" * 64,
        "digest": uuid4().hex * 2,
        "rule": "policy:ask",
        "code": "approval_required",
        "reason": "The policy asks about this tool.",
        "expires_at": timezone.now() + timedelta(hours=1),
        "requested_by_kind": boss.kind,
        "requested_by_id": boss.id,
        "requested_by": boss.label,
    }
    made: Approval = Approval.objects.create(
        organization=of.organization, agent=of, session=session, call_id=uuid4(), **values | more
    )
    return made


FORM = {
    "mode": "form",
    "message": "Which region?",
    "requestedSchema": {
        "type": "object",
        "properties": {
            "region": {"type": "string", "enum": ["eu", "us"], "title": "Region"},
            "count": {"type": "integer", "minimum": 1},
            "sure": {"type": "boolean"},
        },
        "required": ["region"],
    },
}


def create_elicitation(
    session: Session, server: Server, params: Mapping[str, Any] = FORM, hours: int = 1
) -> ElicitationRequest:
    """Create an elicitation request of a server in a session."""
    origin = ElicitationOrigin(session.pk, server.pk, server.name, "provision", uuid4())
    return create_request(
        origin, parse_elicitation(params), timezone.now() + timedelta(hours=hours)
    )


def create_answered_session(of: Agent, text: str = "Hello") -> Session:
    """Create a session whose one message was answered."""
    session = start_session(build_administrator(of.organization), of, text)
    session.inbox.update(processed_at=timezone.now())
    said = {"role": "assistant", "turn": 1, "text": "Hello yourself.", "calls": []}
    for seq, kind, payload in (
        (1, Step.Kind.MESSAGE, {"text": text, "by": "ann"}),
        (2, Step.Kind.MODEL, {"text": said["text"], "message": said}),
        (3, Step.Kind.END, {"answer": said["text"]}),
    ):
        Step.objects.create(
            session=session, seq=seq, kind=kind, state="done", turn=seq == 2, payload=payload
        )
    Session.objects.filter(pk=session.pk).update(status=Session.Status.DONE)
    session.refresh_from_db()
    return session


def create_waiting_session(
    of: Agent, text: str = "Add it up", **more: Any
) -> tuple[Session, Approval]:
    """Create a session that waits for the approval of its call, and the approval."""
    session = start_session(build_administrator(of.organization), of, text)
    approval = create_approval(of, session, **more)
    Step.objects.create(
        session=session,
        seq=1,
        kind=Step.Kind.CALL,
        state=Step.State.INTENT,
        call_id=approval.call_id,
        payload={
            "name": approval.label,
            "arguments": approval.arguments,
            "approval": {"approval_id": str(approval.pk)},
        },
    )
    Session.objects.filter(pk=session.pk).update(status=Session.Status.WAITING)
    session.refresh_from_db()
    return session, approval
