"""Who takes part in the drill: an organization, an agent with the upstream, and the tokens."""

from uuid import UUID

from agents.budgets.services import BudgetLine, set_budgets
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from mcp_servers.flow_labels.effective_labels import set_labels
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories

MANY = 1_000_000  # calls, more than there will be


def found(url: str, clients: int) -> tuple[UUID, list[str], str]:
    """Make them; return the organization, a token for each client, and the person's."""
    where = factories.create_organization("drill")
    administrator = factories.build_administrator(where)
    agent = factories.create_agent(where)
    spec = ServerSpec(
        name="till",
        transport_type="http",
        endpoint_config={"url": url},
        allow_private=True,
        approval=Server.Approval.ALWAYS,
        calls_per_minute=0,
    )
    server = factories.approve_server(where, create_server(administrator, spec), agent)
    # Harmless, but not to be repeated.
    set_labels(administrator, server, list(server.definitions.all()), [])
    set_budgets(
        administrator, agent, [BudgetLine("calls", period, MANY) for period in ("day", "total")]
    )
    tokens = [
        create_token(administrator, name=f"client {one}", role=Role.OPERATOR)[1]
        for one in range(clients)
    ]
    _, person = create_token(administrator, name="person", role=Role.OWNER)
    return where.pk, tokens, person
