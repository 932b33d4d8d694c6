"""The conformance server behind Bonobot: discovered, approved and attached to an agent.

An administrator removes the labels that Bonobot suggests, unless they are wanted.
"""

from dataclasses import dataclass

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories

MANY = 1_000_000  # calls a minute


@dataclass(frozen=True)
class ApprovedServer:
    """A server, an agent it is attached to, and a token for both."""

    organization: Organization
    server: Server
    agent: Agent
    token: str

    @property
    def paths(self) -> tuple[str, str]:
        """The gateway paths of the server and of the agent."""
        return f"/mcp/servers/{self.server.slug}", f"/mcp/agents/{self.agent.slug}"


def create_approved_server(
    url: str, organization: Organization | None = None, *, suggested_labels: bool = False
) -> ApprovedServer:
    """Register the server at `url` with all client capabilities enabled."""
    organization = organization or factories.create_organization()
    administrator = factories.build_administrator(organization)
    spec = ServerSpec(
        name="everything",
        transport_type="http",
        endpoint_config={"url": url},
        allow_private=True,
        approval=Server.Approval.ALWAYS,
        calls_per_minute=0,
        elicitation=True,
        roots=True,
        sampling=Server.Sampling.ALLOW,
    )
    agent = factories.create_agent(organization)
    server = factories.approve_server(organization, create_server(administrator, spec))
    attach_server(administrator, agent, server, allowed_resources=["*"], allowed_prompts=["*"])
    if not suggested_labels:
        set_labels(administrator, server, list(server.definitions.all()), [])
    _, token = create_token(administrator, name="suite", role=Role.OPERATOR, calls_per_minute=MANY)
    return ApprovedServer(organization, server, agent, token)
