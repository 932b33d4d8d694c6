"""The command `agents list`, which loads neither tools nor sessions, and the lookup of an agent."""

import argparse
from typing import Any

from django.db.models import Count, Q

from agents.models import Agent, Session
from agents.policies.services import load_policy_spec
from bonobot.core.cli import command_group
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table

# Session states that are counted in the list.
BUSY_STATUSES = (Session.Status.RUNNING.value, Session.Status.WAITING.value)


def get_agent(cli: CommandContext, slug: str) -> Agent:
    """Return an agent by slug; raises `NotFound`."""
    agent: Agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=slug)
    return agent


def serialize_agent(agent: Agent) -> dict[str, Any]:
    policy = load_policy_spec(agent)
    return {
        "id": str(agent.pk),
        "slug": agent.slug,
        "name": agent.name,
        "description": agent.description,
        "enabled": agent.enabled,
        "model": agent.model_endpoint.name,
        "builtin_tools": agent.builtin_tools,
        "servers": [b.server.slug for b in agent.agent_servers.select_related("server")],
        "policy": {"mode": policy.mode, "allow": policy.allow, "deny": policy.deny},
    }


def _list_agents(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Agent.objects.for_organization(cli.principal.organization_id)
    session_counts = {f"{status}_sessions": _count_sessions(status) for status in BUSY_STATUSES}

    def load_rows() -> list[dict[str, Any]]:
        agents = rows.select_related("model_endpoint").annotate(**session_counts)
        return [
            serialize_agent(agent) | {name: getattr(agent, name) for name in session_counts}
            for agent in agents
        ]

    command_group.show_rows(cli, options, load_rows, _render_agents)


def _count_sessions(status: str) -> Count:
    return Count("sessions", filter=Q(sessions__status=status))


def _render_agents(agents: list[dict[str, Any]]) -> Any:
    rows = [
        (
            *(a["slug"], a["name"], a["model"], a["policy"]["mode"]),
            *(a[f"{status}_sessions"] for status in BUSY_STATUSES),
            ", ".join(a["servers"]),
        )
        for a in agents
    ]
    empty = "No agents yet. Create one: bonobot agents add NAME"
    columns = (
        "SLUG",
        "NAME",
        "MODEL",
        "POLICY",
        *(status.upper() for status in BUSY_STATUSES),
        "SERVERS",
    )
    return build_table(*columns, rows=rows, empty=empty)


VERBS = (
    CommandVerb(
        "list",
        "List agents with their numbers of running and waiting sessions",
        _list_agents,
        arguments=(command_group.add_watch_arguments,),
        examples=("agents list --json", "agents list --watch"),
    ),
)
