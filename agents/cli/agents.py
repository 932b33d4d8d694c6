"""The commands `agents list`, `add`, `set`, `enable`, `disable`, `remove`, and `callable-agents`.

`agents list` loads neither tools nor sessions, so other verbs import what they need.
"""

import argparse
from collections.abc import Callable
from typing import Any

from django.db.models import Count, Q

from agents.assignments import list_callable_agents, set_callable_agents
from agents.builtin_tools.toolset_options import TOOLSETS
from agents.models import Agent, ModelEndpoint, Session
from agents.policies.services import load_policy_spec
from bonobot.core.cli import watch_rows
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandVerb,
    read_text,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput

# Session states that are counted in the list.
BUSY_STATUSES = (Session.Status.RUNNING.value, Session.Status.WAITING.value)
_LIMIT_HELP = {
    "max_turns": "Maximum model turns per message",
    "max_calls": "Maximum calls per message",
    "max_run_s": "Maximum running time per message, in seconds",
    "calls_per_minute": "Maximum calls per minute, for all sessions of the agent combined",
    "tool_search_above": "Use tool search if the agent has more server tools than this. 0: never",
}


def get_agent(cli: CommandContext, slug: str) -> Agent:
    """Return an agent by slug; raises `NotFound`."""
    return cli.get_row(Agent, slug=slug)


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

    watch_rows.show_rows(cli, options, load_rows, _render_agents)


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


def _add_limit_arguments(parser: argparse.ArgumentParser) -> None:
    from agents.config_file.read_config import AGENT_LIMITS

    for name in AGENT_LIMITS:
        flag = f"--{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, type=int, metavar="N", help=_LIMIT_HELP[name])


_UPDATE_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Argument("--name NAME", "New name"),
    Argument("--description TEXT", "New description"),
    Alternatives(
        Argument("--instructions TEXT", "New instructions"),
        Argument("--instructions-file FILE", "File with the new instructions. -: standard input"),
    ),
    Argument("--model SLUG", "Slug of a model endpoint"),
    _add_limit_arguments,
    Argument(
        "--[no-]tools-in-prompt",
        "List the servers' tools in the system prompt, also for models with tool calls",
    ),
    Argument(
        "--output-schema FILE", 'File with the JSON Schema of answers. -: standard input. "": none'
    ),
)


def _update_agent(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.cli.sessions import read_output_schema
    from agents.config_file.read_config import AGENT_LIMITS
    from agents.services import AgentSpec, update_agent

    agent = Agent.objects.get_by_name(cli.principal, options.slug)
    texts = {
        "description": options.description,
        "instructions": read_text(options.instructions_file, "--instructions-file")
        if options.instructions_file
        else options.instructions,
    }
    changes: dict[str, Any] = {name: text for name, text in texts.items() if text is not None}
    if options.model:
        changes["model_endpoint"] = cli.get_row(ModelEndpoint, slug=options.model)
    changes |= _collect_limits(options)
    if options.tools_in_prompt is not None:
        changes["tools_in_prompt"] = options.tools_in_prompt
    if options.output_schema is not None:
        changes["output_schema"] = read_output_schema(options.output_schema or None) or {}
    if changes or options.name:
        agent = update_agent(
            cli.principal, agent, AgentSpec(name=options.name or agent.name, **changes)
        )
    limits = {name: getattr(agent, name) for name in AGENT_LIMITS}
    displayed_values = {
        "name": agent.name,
        "description": agent.description,
        "model": agent.model_endpoint.slug,
        **limits,
        "tools_in_prompt": agent.tools_in_prompt,
    }
    cli.emit(
        {
            "slug": agent.slug,
            **displayed_values,
            "instructions": agent.instructions,
            "output_schema": agent.output_schema or None,
        }
    )
    cli.print_message(
        ", ".join(f"{name}: {value}" for name, value in displayed_values.items() if value != "")
    )


def _collect_limits(options: argparse.Namespace) -> dict[str, int]:
    """Return the specified limits; raises `InvalidInput` for a negative one."""
    from agents.config_file.read_config import AGENT_LIMITS

    limits = {name: getattr(options, name) for name in AGENT_LIMITS}
    limits = {name: value for name, value in limits.items() if value is not None}
    for name, value in limits.items():
        if value < 0:
            raise InvalidInput(
                f"{value} isn't a valid limit.",
                field=f"--{name.replace('_', '-')}",
                remedy="Use a whole number of 0 or more.",
            )
    return limits


SET_VERB = CommandVerb(
    "set",
    "Show or change an agent's name, instructions, model, and limits",
    _update_agent,
    arguments=_UPDATE_ARGUMENTS,
    examples=(
        "agents set helper",
        "agents set helper --model claude --instructions-file helper.md",
        "agents set helper --tool-search-above 20",
        "agents set helper --tools-in-prompt",
        "agents set helper --max-turns 80",
        "agents set helper --output-schema answer.json",
    ),
)


_CREATE_ARGUMENTS = (
    Argument("NAME", "Name of the agent"),
    Argument("--slug SLUG", "Slug of the agent (default: derived from the name)"),
    Argument("--instructions INSTRUCTIONS", "Instructions for the agent", default=""),
    Argument("--description DESCRIPTION", "Description of the agent", default=""),
    Argument("--model SLUG", "Slug of a model endpoint (default: the first one)"),
    Argument(
        "--builtin",
        "Built-in toolset to enable. Repeatable",
        action="append",
        choices=list(TOOLSETS),
    ),
)


def _create_agent(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.services import AgentSpec, create_agent

    endpoint = None
    if options.model:
        endpoint = cli.get_row(ModelEndpoint, slug=options.model)
    spec = AgentSpec(
        name=options.name,
        slug=options.slug,
        description=options.description,
        instructions=options.instructions,
        model_endpoint=endpoint,
        builtin_tools=options.builtin,
    )
    agent = create_agent(cli.principal, spec)
    cli.emit(serialize_agent(agent))
    cli.print_message(
        f"{agent.slug} was created. Its policy denies every tool until you change it:"
    )
    cli.print_message(f"bonobot agents policy {agent.slug} --mode all")


def _delete_agent(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.services import delete_agent

    agent = get_agent(cli, options.slug)
    delete_agent(cli.principal, agent)
    cli.emit({"removed": options.slug})
    cli.print_message(f"{options.slug} was deleted.")


def _build_enable_handler(enabled: bool) -> Callable[[CommandContext, argparse.Namespace], None]:
    def set_enabled(cli: CommandContext, options: argparse.Namespace) -> None:
        from agents.services import AgentSpec, update_agent

        agent = get_agent(cli, options.slug)
        update_agent(cli.principal, agent, AgentSpec(name=agent.name, enabled=enabled))
        cli.emit({"slug": agent.slug, "enabled": agent.enabled})
        cli.print_message(
            f"{agent.slug} was enabled."
            if enabled
            else f"{agent.slug} was disabled. Its sessions are canceled."
        )

    return set_enabled


_SLUG_ARGUMENT = (Argument("SLUG", "Slug of the agent"),)


VERBS = (
    CommandVerb(
        "list",
        "List agents with their numbers of running and waiting sessions",
        _list_agents,
        arguments=watch_rows.WATCH_ARGUMENTS,
        examples=("agents list --json", "agents list --watch"),
    ),
    CommandVerb(
        "add",
        "Create an agent",
        _create_agent,
        arguments=_CREATE_ARGUMENTS,
        examples=("agents add Helper",),
    ),
    SET_VERB,
    CommandVerb(
        "disable",
        "Disable an agent and cancel its sessions",
        _build_enable_handler(False),
        arguments=_SLUG_ARGUMENT,
        examples=("agents disable demo",),
    ),
    CommandVerb(
        "enable",
        "Enable an agent",
        _build_enable_handler(True),
        arguments=_SLUG_ARGUMENT,
        examples=("agents enable demo",),
    ),
    CommandVerb(
        "remove",
        "Delete an agent, its sessions, and its private servers. The audit log is kept.",
        _delete_agent,
        arguments=_SLUG_ARGUMENT,
        examples=("agents remove demo", "agents remove demo --yes"),
        confirmation="Delete the agent {slug}, its sessions, and its private servers?",
    ),
)


def _handle_callable_agents(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = get_agent(cli, options.slug)
    if options.others or options.none:
        set_callable_agents(cli.principal, agent, () if options.none else options.others)
    callable_agents = list_callable_agents(agent)
    cli.emit({"agent": agent.slug, "callable_agents": callable_agents})
    cli.print_message(f"{agent.slug} can call: {', '.join(callable_agents) or 'no agents'}")


_CALLABLE_AGENTS_ARGUMENTS = (
    Argument("SLUG", "Slug of the agent"),
    Argument("OTHER", "Slugs of all agents it can call", nargs="*", dest="others"),
    Argument("--none", "Remove all agents it can call"),
)


CALLABLE_AGENT_VERBS = (
    CommandVerb(
        "callable-agents",
        "Show or set which agents an agent can call",
        _handle_callable_agents,
        arguments=_CALLABLE_AGENTS_ARGUMENTS,
        examples=("agents callable-agents demo", "agents callable-agents demo researcher writer"),
    ),
)
