"""A demo organization with an agent and three servers.

It needs no network, key or other service: the servers are installed with Bonobot, and the agent
uses the offline model. All rows are created through the regular services.
"""

import secrets
import sys
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from django.conf import settings

from agents.agent_tools.services import save_settings
from agents.agent_tools.settings import Setting
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent, ModelEndpoint
from agents.policies.services import PolicySpec, set_policy
from agents.services import AgentSpec, attach_server, create_agent
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import Principal, build_cli_principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import discover_servers
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, set_server_enabled

USERNAME = "admin"
INSTALL_COMMAND = "pip install 'bonobot[demo]'"
INSTRUCTIONS = """You help people find out what time it is{more}.
Use the tools. State clearly what you did and what didn't work."""
# Servers whose tools the agent may all call.
OPEN_SERVERS = ("time", "fetch")
# The agent may read the repository but not write, so that refusals can be tried, too.
ALLOWED_RULES = (
    "mcp_git_git_status",
    "mcp_git_git_diff*",
    "mcp_git_git_log",
    "mcp_git_git_show",
    "mcp_git_git_branch",
    "read_result",
)


@dataclass(frozen=True)
class DemoOrganization:
    """How to sign in to the demo; the password is not stored."""

    username: str
    password: str
    organization: str
    agent: str
    problems: tuple[str, ...] = ()


@dataclass(frozen=True)
class _DemoServer:
    name: str
    module: str
    description: str
    args: tuple[str, ...] = ()
    folder: str = ""  # readable in its sandbox
    enabled: bool = True


def create_demo_organization() -> DemoOrganization:
    """Create the demo and return how to sign in; servers that fail are reported."""
    password = secrets.token_urlsafe(12)
    organization, user = _create_organization_and_user(password)
    principal = build_cli_principal(organization)
    endpoint = save_endpoint(
        principal,
        ModelEndpointSpec(name="Offline", kind=ModelEndpoint.Kind.OFFLINE, model="offline"),
    )
    agent = create_agent(
        principal,
        AgentSpec(
            name="Demo",
            slug="demo",
            description="Knows the time, and this repository's history"
            if _find_repository()
            else "Knows the time",
            instructions=_build_instructions(),
            model_endpoint=endpoint,
        ),
    )
    problems = _set_up_servers(principal, agent)
    set_policy(principal, agent, PolicySpec("allowlist", allow=_select_allowed_rules(agent)))
    # The servers' own settings, so that the switches of the agent's tools change them.
    servers = agent.agent_servers.filter(server__slug__in=OPEN_SERVERS)
    defaults = dict.fromkeys(servers.values_list("server", flat=True), Setting.ALLOW)
    save_settings(principal, agent, {}, defaults)
    return DemoOrganization(
        user.username,
        password=password,
        organization=organization.slug,
        agent=agent.slug,
        problems=tuple(problems),
    )


def _create_organization_and_user(password: str) -> tuple[Organization, User]:
    organization = Organization.objects.create(name="Demo", slug="demo")
    user = User.objects.create_superuser(USERNAME, password=password)
    principal = build_cli_principal(organization)
    with record_change(
        actor=principal.actor,
        action="organization_created",
        **describe_row("organization", organization),
    ):
        Membership.objects.create(organization=organization, user=user, role=Role.OWNER)
    return organization, user


def _build_instructions() -> str:
    if repository := _find_repository():
        text = INSTRUCTIONS.format(more=", and what happened in a git repository")
        return f"{text}\nThe repository is at {repository}."
    return INSTRUCTIONS.format(more="")


def _list_servers() -> list[_DemoServer]:
    """Return the servers; git only if there is a repository."""
    repository = _find_repository()
    demo_servers = [
        _DemoServer("time", "mcp_server_time", "Time and time zones"),
        _DemoServer("fetch", "mcp_server_fetch", "Fetch web pages", enabled=False),
    ]
    if repository:
        arguments = ("--repository", str(repository))
        description = f"The history of {repository}"
        demo_servers.insert(
            1,
            _DemoServer(
                "git",
                module="mcp_server_git",
                description=description,
                args=arguments,
                folder=str(repository),
            ),
        )
    return demo_servers


def _find_repository() -> Path | None:
    """Return the repository of the code or of the working directory, if any."""
    starts = (Path(settings.BASE_DIR), Path.cwd())
    folders = (folder for start in starts for folder in (start, *start.parents))
    return next((folder for folder in folders if (folder / ".git").exists()), None)


def _set_up_servers(principal: Principal, agent: Agent) -> list[str]:
    """Create, discover, approve and attach the servers; return the problems."""
    created: dict[Server, _DemoServer] = {}
    problems = []
    for demo_server in _list_servers():
        if find_spec(demo_server.module) is None:
            problems.append(f"{demo_server.name} isn't installed. It comes with: {INSTALL_COMMAND}")
            continue
        try:
            created[_create_demo_server(principal, demo_server)] = demo_server
        except Problem as problem:
            problems.append(f"{demo_server.name} can't be added: {problem}")
    for attempt in discover_servers([*created], actor=principal.actor):
        server, demo_server = attempt.server, created[attempt.server]
        if attempt.problem:
            problems.append(f"{demo_server.name} can't be used: {attempt.problem}")
        else:
            approve_definitions(principal, server)
        attach_server(principal, agent, server)
        if not demo_server.enabled:
            set_server_enabled(principal, server, enabled=False)
    return problems


def _create_demo_server(principal: Principal, demo_server: _DemoServer) -> Server:
    return create_server(
        principal,
        ServerSpec(
            name=demo_server.name,
            description=demo_server.description,
            transport_type=Server.Transport.STDIO,
            endpoint_config={
                "command": sys.executable,
                "args": ["-m", demo_server.module, *demo_server.args],
                **({"cwd": demo_server.folder} if demo_server.folder else {}),
            },
        ),
    )


def _select_allowed_rules(agent: Agent) -> tuple[str, ...]:
    """Return the rules of the attached servers."""
    slugs = {
        attached_server.server.slug
        for attached_server in agent.agent_servers.select_related("server")
    }
    return tuple(
        rule for rule in ALLOWED_RULES if not rule.startswith("mcp_") or rule.split("_")[1] in slugs
    )
