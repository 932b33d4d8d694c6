"""An organization for one test, its owner's browser, and servers of `tests/servers`."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from playwright.sync_api import Page

from agents.models import Agent, Session
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.agents.conftest import WORKSHOP
from tests.end_to_end.accounts import create_member, sign_in
from tests.processes import Web

# Servers that tests register, and their files beside `WORKSHOP`.
PROGRAMS = {"asker": "client_request_server.py", "workshop": "tool_server.py"}


@pytest.fixture
def acme(module_rows: None) -> Organization:
    """An organization for one test."""
    return factories.create_organization(f"acme-{uuid4().hex[:8]}")


@pytest.fixture
def owner(acme: Organization, module_page: Page, module_web: Web) -> Page:
    """The browser of an owner."""
    sign_in(module_page, create_member(acme, Role.OWNER), acme, module_web.url)
    return module_page


@pytest.fixture
def add_program(acme: Organization, tmp_path: Path) -> Iterator[Callable[..., Server]]:
    """A function that adds a server of `tests/servers` to an agent: `(agent, name, argument)`."""
    added: list[Server] = []

    def register(agent: Agent, name: str, argument: str) -> Server:
        config = {
            "command": sys.executable,
            "args": [str(WORKSHOP.with_name(PROGRAMS[name])), argument],
            "env": {f"{name.upper()}_FILE": str(tmp_path / name)},
        }
        spec = ServerSpec(name=name, transport_type="stdio", endpoint_config=config)
        server = create_server(factories.build_administrator(acme), spec)
        added.append(server)
        return factories.approve_server(acme, server, agent)

    yield register
    for server in added:
        get_runtime().call(get_connection_pool().forget_server, server.pk)


def get_status(session: Session) -> str:
    session.refresh_from_db()
    return str(session.status)
