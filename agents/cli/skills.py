"""The command group `skills`, and options shared with workflows and triggers."""

import argparse
from typing import Any

from agents.assignments import list_agent_slugs
from agents.cli.agents import get_agent
from agents.cli.sessions import add_wait_arguments, show_session_result
from agents.models import Skill
from agents.sessions.services import run_skill
from agents.skills.services import SkillSpec, delete_skill, get_skill, save_skill
from agents.skills.templates import LINE_SYNTAX, build_template, parse_line, render_skill
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandVerb,
    build_table,
    parse_pairs,
    read_text,
)
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.untrusted_text import make_visible


def add_name_argument(parser: argparse.ArgumentParser) -> None:
    """Add the name argument."""
    parser.add_argument("name", metavar="NAME")


def add_agents_arguments(parser: argparse.ArgumentParser, help_text: str) -> None:
    """Add the options for the agents that have it; see `collect_agents`."""
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--agent", action="append", metavar="SLUG", help=help_text)
    group.add_argument("--no-agents", action="store_true", help="take it from all agents")


def collect_agents(options: argparse.Namespace) -> list[str] | tuple[()] | None:
    """Return the slugs of the agents, or None to leave them unchanged."""
    agents: list[str] | None = options.agent
    return () if options.no_agents else agents


def add_enabled_arguments(parser: argparse.ArgumentParser) -> None:
    """Add `--on` and `--off`; without either, the state stays unchanged."""
    switch = parser.add_mutually_exclusive_group()
    switch.add_argument("--on", dest="enabled", action="store_true", default=None)
    switch.add_argument("--off", dest="enabled", action="store_false")


def serialize_skill(skill: Skill) -> dict[str, Any]:
    """Return the JSON representation of a skill."""
    names = ("name", "title", "description", "text", "arguments", "enabled", "version", "digest")
    values = {name: getattr(skill, name) for name in names}
    return {"id": str(skill.pk), **values, "agents": list_agent_slugs(skill)}


def _list_skills(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Skill.objects.for_organization(cli.principal.organization_id)
    if options.agent:
        rows = rows.filter(given__agent=get_agent(cli, options.agent))
    serialized = [serialize_skill(row) for row in rows]
    table_rows = [
        (
            skill["name"] if skill["enabled"] else f"{skill['name']} (off)",
            skill["version"],
            ", ".join(argument["name"] for argument in skill["arguments"]),
            ", ".join(skill["agents"]) or "–",
            skill["description"] or skill["title"],
        )
        for skill in serialized
    ]
    empty = "No skills yet. Write one: bonobot skills add NAME --file FILE"
    columns = ("NAME", "VERSION", "ARGUMENTS", "AGENTS", "WHAT IT IS FOR")
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _show_skill_text(cli: CommandContext, options: argparse.Namespace) -> None:
    skill = get_skill(cli.principal, options.name)
    cli.emit(serialize_skill(skill))
    cli.print_message(make_visible(skill.text, len(skill.text)))


def _create_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    if Skill.objects.filter(
        organization_id=cli.principal.organization_id, name=options.name
    ).exists():
        raise Conflict(
            f"There is a skill {options.name!r} already.",
            code="name_taken",
            field="NAME",
            remedy=f"Change it: bonobot skills set {options.name} …",
        )
    _show_skill(cli, save_skill(cli.principal, _build_spec(options)))


def _update_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    skill = get_skill(cli.principal, options.name)
    _show_skill(cli, save_skill(cli.principal, _build_spec(options), skill))


def _show_skill(cli: CommandContext, skill: Skill) -> None:
    cli.emit(serialize_skill(skill))
    cli.print_message(
        f"{skill.name} is at version {skill.version}; it is given to: "
        f"{', '.join(list_agent_slugs(skill)) or 'no agent'}."
    )


def _run_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    skill = get_skill(cli.principal, options.name)
    arguments = parse_pairs(options.values, "KEY=VALUE")
    if options.dry_run:
        text = render_skill(build_template(skill), arguments)
        cli.emit({"text": text})
        cli.print_message(make_visible(text, len(text)))
        return
    if not options.agent:
        raise InvalidInput(
            "No agent is named.", field="--agent", remedy="Add --agent SLUG, or --dry-run."
        )
    show_session_result(
        cli, run_skill(cli.principal, skill, get_agent(cli, options.agent), arguments), options
    )


def _delete_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    skill = get_skill(cli.principal, options.name)
    serialized = serialize_skill(skill)
    delete_skill(cli.principal, skill)
    cli.emit(serialized)
    cli.print_message(f"{options.name} is gone.")


def _build_spec(options: argparse.Namespace) -> SkillSpec:
    return SkillSpec(
        name=options.name,
        title=options.title,
        description=options.description,
        text=options.text if options.file is None else read_text(options.file),
        arguments=None
        if options.argument is None
        else [parse_line(line).as_dict() for line in options.argument],
        enabled=options.enabled,
        agents=collect_agents(options),
    )


def _add_list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="SLUG", help="those that an agent has")


def _add_write_arguments(parser: argparse.ArgumentParser) -> None:
    add_name_argument(parser)
    text_source = parser.add_mutually_exclusive_group()
    text_source.add_argument("--file", help="file with the instructions; - reads standard input")
    text_source.add_argument("--text", help="the instructions")
    parser.add_argument("--title")
    parser.add_argument("--description", help="what it is for, in a line")
    parser.add_argument(
        "--argument",
        action="append",
        metavar="ARGUMENT",
        help=f"{LINE_SYNTAX}; it stands in the text as ${{NAME}}; several may be given",
    )
    add_agents_arguments(parser, "agents that have it")
    add_enabled_arguments(parser)


def _add_run_arguments(parser: argparse.ArgumentParser) -> None:
    add_name_argument(parser)
    parser.add_argument("values", metavar="KEY=VALUE", nargs="*", help="values of its arguments")
    parser.add_argument("--agent", metavar="SLUG", help="the agent that runs it")
    parser.add_argument("--dry-run", action="store_true", help="only show the text")
    add_wait_arguments(parser)


VERBS = (
    CommandVerb(
        "list",
        "List the skills.",
        _list_skills,
        _add_list_arguments,
        ("skills list", "skills list --agent helper --json"),
    ),
    CommandVerb(
        "show", "Show a skill.", _show_skill_text, add_name_argument, ("skills show release-notes",)
    ),
    CommandVerb(
        "add",
        "Write a skill.",
        _create_skill,
        _add_write_arguments,
        (
            "skills add release-notes --text 'Write notes for ${version}.' --argument version!",
            "skills add triage --file triage.md --agent helper",
        ),
    ),
    CommandVerb(
        "set",
        "Change a skill; another text or other arguments are a new version.",
        _update_skill,
        _add_write_arguments,
        ("skills set triage --file triage.md", "skills set triage --agent helper --off"),
    ),
    CommandVerb(
        "run",
        "Give a skill to an agent as a message and wait for its answer.",
        _run_skill,
        _add_run_arguments,
        (
            "skills run release-notes version=1.4 --agent helper",
            "skills run release-notes version=1.4 --dry-run",
        ),
    ),
    CommandVerb(
        "remove", "Remove a skill.", _delete_skill, add_name_argument, ("skills remove triage",)
    ),
)
