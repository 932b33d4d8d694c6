"""Create organizations, members, agents and servers for tests with the product's services."""

import sys
from collections.abc import Mapping
from datetime import timedelta
from typing import Any
from uuid import uuid4

from django.utils import timezone

from agents import services as agent_services
from agents.elicitations.requested_schemas import parse_elicitation
from agents.elicitations.services import ElicitationOrigin, create_request
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import (
    AccessRequest,
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
from bonobot.accounts.sso import identity_providers as sso
from bonobot.core.runtime import get_runtime
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import Notification
from bonobot.notifications.notify import NotificationSubject, build_notification
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests.parts import ROOT

CLOCK = ROOT / "tests" / "servers" / "clock.py"


def create_organization(slug: str = "acme") -> Organization:
    """Create an organization."""
    organization: Organization = Organization.objects.create(name=slug.title(), slug=slug)
    return organization


def create_member(organization: Organization, role: Role, name: str = "") -> Principal:
    """Create a member with a role and return their principal."""
    user = User.objects.create_user(name or f"{role}-{organization.slug}", password="pw-for-tests")
    Membership.objects.create(organization=organization, user=user, role=role)
    return build_user_principal(user, organization)


def build_administrator(organization: Organization) -> Principal:
    """Return the platform administrator's principal."""
    return build_cli_principal(organization)


def create_agent(
    organization: Organization, slug: str = "helper", mode: str = "all", **fields: Any
) -> Agent:
    """Create an agent with the offline model and a policy mode."""
    administrator = build_administrator(organization)
    endpoint = ModelEndpoint.objects.filter(organization=organization).first() or save_endpoint(
        administrator, ModelEndpointSpec(name="Offline", kind="offline", model="offline")
    )
    agent = agent_services.create_agent(
        administrator, AgentSpec(name=slug.title(), slug=slug, model_endpoint=endpoint, **fields)
    )
    set_policy(administrator, agent, PolicySpec(mode))
    return agent


def create_stdio_server(
    organization: Organization, name: str = "time", *, from_pypi: bool = False
) -> Server:
    """Register a stdio server that returns the time; the one from PyPI starts 20 times slower."""
    args = ["-m", "mcp_server_time"] if from_pypi else [str(CLOCK)]
    return create_server(
        build_administrator(organization),
        ServerSpec(
            name=name,
            transport_type="stdio",
            endpoint_config={"command": sys.executable, "args": args},
        ),
    )


def create_http_server(organization: Organization, url: str, name: str = "web") -> Server:
    """Register an HTTP server on the loopback."""
    return create_server(
        build_administrator(organization),
        ServerSpec(
            name=name, transport_type="http", endpoint_config={"url": url}, allow_private=True
        ),
    )


def create_notification(organization: Organization, name: str = "Pager") -> Notification:
    """Create a channel that can't deliver, with a pending notification."""
    spec = NotificationChannelSpec(name, "webhook", url="https://hooks.example.com/x")
    channel, _secret = save_channel(build_administrator(organization), spec)
    notification = build_notification(
        channel, "server_down", NotificationSubject("mcp_server", "1", "web"), "Away.", topic="t"
    )
    notification.save()
    return notification


def create_issuer(
    organization: Organization, url: str, name: str = "Login", **fields: Any
) -> Issuer:
    """Create an external issuer with a unique name and URL."""
    return external_issuers.create_issuer(
        build_administrator(organization), name=name, url=url, **fields
    )


def create_provider(
    organization: Organization, url: str, name: str = "Login", **fields: Any
) -> Provider:
    """Create an identity provider."""
    values = {"client_id": "bonobot"} | fields
    return sso.create_provider(build_administrator(organization), name=name, url=url, **values)


def approve_server(organization: Organization, server: Server, *agents: Agent) -> Server:
    """Discover a server, approve its definitions and attach it to agents."""
    administrator = build_administrator(organization)
    get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    approve_definitions(administrator, server)
    for agent in agents:
        attach_server(administrator, agent, server)
    server.refresh_from_db()
    return server


def create_workflow(agent: Agent, name: str = "tell", *, hooks: int = 0, **fields: Any) -> Workflow:
    """Create a workflow of one call that needs no server, and attach it to its agent."""
    source = (
        f"agent: {agent.slug}\nsteps:\n  - {{id: look, call: read_skill, arguments: {{name: x}}}}\n"
    )
    spec = WorkflowSpec(**{"name": name, "source": source, "agents": [agent.slug]} | fields)
    workflow = save_workflow(build_administrator(agent.organization), spec)
    for number in range(hooks):
        create_trigger(workflow, f"hook{number}")
    return workflow


def create_trigger(workflow: Workflow, name: str = "alerts") -> Trigger:
    """Create a webhook trigger of a workflow."""
    spec = TriggerSpec(name=name, kind="webhook")
    return save_trigger(build_administrator(workflow.organization), workflow, spec)[0]


def create_access_request(organization: Organization, **fields: Any) -> AccessRequest:
    """Create a pending access request of a member for an agent that doesn't exist."""
    values = {
        "kind": "agent",
        "target": f"Wish {uuid4().hex[:8]}",
        "target_key": uuid4().hex,
        "reason": "To answer customers.",
        "requested_by_kind": "user",
        "requested_by_id": str(uuid4()),
        "requested_by": "anna",
        "expires_at": timezone.now() + timedelta(days=1),
    }
    access_request: AccessRequest = AccessRequest.objects.create(
        organization=organization, **(values | fields)
    )
    return access_request


def create_approval(agent: Agent, session: Session | None = None, **fields: Any) -> Approval:
    """Create a pending approval of a call that the command line requested."""
    administrator = build_administrator(agent.organization)
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
        "requested_by_kind": administrator.kind,
        "requested_by_id": administrator.id,
        "requested_by": administrator.label,
    }
    approval: Approval = Approval.objects.create(
        organization=agent.organization,
        agent=agent,
        session=session,
        call_id=uuid4(),
        **values | fields,
    )
    return approval


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


def create_answered_session(agent: Agent, text: str = "Hello") -> Session:
    """Create a session whose one message was answered."""
    session = start_session(build_administrator(agent.organization), agent, text)
    session.inbox.update(processed_at=timezone.now())
    message = {"role": "assistant", "turn": 1, "text": "Hello yourself.", "calls": []}
    for seq, kind, payload in (
        (1, Step.Kind.MESSAGE, {"text": text, "by": "ann"}),
        (2, Step.Kind.MODEL, {"text": message["text"], "message": message}),
        (3, Step.Kind.END, {"answer": message["text"]}),
    ):
        Step.objects.create(
            session=session, seq=seq, kind=kind, state="done", turn=seq == 2, payload=payload
        )
    Session.objects.filter(pk=session.pk).update(status=Session.Status.DONE)
    session.refresh_from_db()
    return session


def create_waiting_session(
    agent: Agent, text: str = "Add it up", **fields: Any
) -> tuple[Session, Approval]:
    """Create a session that waits for the approval of its call, and the approval."""
    session = start_session(build_administrator(agent.organization), agent, text)
    approval = create_approval(agent, session, **fields)
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
