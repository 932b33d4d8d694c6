"""The server with every fixture behind Bonobot: discovered, approved, given to an agent.

Its tools are labelled by a person as what they are, harmless: what they say of themselves reads
like tools that ask and send.
"""

from dataclasses import dataclass

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from mcp_servers.flow_labels.services import set_labels
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories

MANY = 1_000_000  # calls a minute


@dataclass(frozen=True)
class Published:
    """A server of the pool, an agent that has it, and a token for both."""

    where: Organization
    server: Server
    agent: Agent
    token: str

    @property
    def paths(self) -> tuple[str, str]:
        """Where the gateway serves the server and the agent."""
        return f"/mcp/servers/{self.server.slug}", f"/mcp/agents/{self.agent.slug}"


def publish(url: str, where: Organization | None = None) -> Published:
    """Register the server at `url`, which may ask back whatever it likes."""
    where = where or factories.create_organization()
    boss = factories.build_administrator(where)
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
    agent = factories.create_agent(where)
    server = factories.approve_server(where, create_server(boss, spec))
    attach_server(boss, agent, server, allowed_resources=["*"], allowed_prompts=["*"])
    set_labels(boss, server, list(server.definitions.all()), [])
    _, token = create_token(boss, name="suite", role=Role.OPERATOR, calls_per_minute=MANY)
    return Published(where, server, agent, token)
