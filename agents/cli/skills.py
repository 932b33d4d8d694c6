"""The command group `skills`, and options shared with workflows and triggers."""

import argparse
from typing import TYPE_CHECKING, Any

from agents.cli.agents import get_agent
from agents.models import Skill
from agents.models.skills import SKILL_TEXTS
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandVerb,
    add_arguments,
    parse_pairs,
    read_text,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from agents.skills import SkillSpec


NAME_ARGUMENT = (Argument("NAME", "Name of the skill"),)


def build_agents_arguments(help_text: str) -> Alternatives:
    """Return the options for the agents that have it; see `collect_agents`."""
    return Alternatives(
        Argument("--agent SLUG", help_text, action="append"),
        Argument("--no-agents", "Detach from all agents"),
    )


def collect_agents(options: argparse.Namespace) -> list[str] | tuple[()] | None:
    """Return the slugs of the agents, or None to leave them unchanged."""
    agents: list[str] | None = options.agent
    return () if options.no_agents else agents


ENABLED_ARGUMENTS = (Argument("--[no-]enabled", "Whether it is enabled"),)


def serialize_skill(skill: Skill) -> dict[str, Any]:
    from agents.assignments import list_agent_slugs

    names = ("name", *SKILL_TEXTS, "arguments", "enabled", "version", "digest")
    values = {name: getattr(skill, name) for name in names}
    return {"id": str(skill.pk), **values, "agents": list_agent_slugs(skill)}


def _list_skills(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Skill.objects.for_organization(cli.principal.organization_id)
    if options.agent:
        rows = rows.filter(assignments__agent=get_agent(cli, options.agent))
    serialized = [serialize_skill(row) for row in rows]
    table_rows = [
        (
            skill["name"] if skill["enabled"] else f"{skill['name']} (disabled)",
            skill["version"],
            ", ".join(argument["name"] for argument in skill["arguments"]),
            ", ".join(skill["agents"]) or "–",
            skill["description"] or skill["title"],
        )
        for skill in serialized
    ]
    empty = "No skills yet. Create one: bonobot skills add NAME --file FILE"
    columns = ("NAME", "VERSION", "ARGUMENTS", "AGENTS", "DESCRIPTION")
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _show_skill_text(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.skills import get_skill

    skill = get_skill(cli.principal, options.name)
    cli.emit(serialize_skill(skill))
    cli.print_message(make_visible(skill.text, len(skill.text)))


def _create_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.skills import save_skill

    if Skill.objects.filter(
        organization_id=cli.principal.organization_id, name=options.name
    ).exists():
        raise Conflict(
            f"A skill named {options.name!r} already exists.",
            code="name_taken",
            field="NAME",
            remedy=f"To change it: bonobot skills set {options.name} …",
        )
    _show_skill(cli, save_skill(cli.principal, _build_spec(options)))


def _update_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.skills import get_skill, save_skill

    skill = get_skill(cli.principal, options.name)
    _show_skill(cli, save_skill(cli.principal, _build_spec(options), skill))


def _show_skill(cli: CommandContext, skill: Skill) -> None:
    from agents.assignments import list_agent_slugs

    cli.emit(serialize_skill(skill))
    cli.print_message(
        f"{skill.name} was saved as version {skill.version}. Agents: "
        f"{', '.join(list_agent_slugs(skill)) or 'none'}."
    )


def _run_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.cli.sessions import show_session_result
    from agents.sessions.services import run_skill
    from agents.skills import build_template, get_skill, render_skill

    skill = get_skill(cli.principal, options.name)
    arguments = parse_pairs(options.values, "KEY=VALUE")
    if options.dry_run:
        text = render_skill(build_template(skill), arguments)
        cli.emit({"text": text})
        cli.print_message(make_visible(text, len(text)))
        return
    if not options.agent:
        raise InvalidInput(
            "No agent was specified.",
            field="--agent",
            remedy="Add --agent SLUG, or --dry-run to only show the text.",
        )
    show_session_result(
        cli, run_skill(cli.principal, skill, get_agent(cli, options.agent), arguments), options
    )


def _delete_skill(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.skills import delete_skill, get_skill

    skill = get_skill(cli.principal, options.name)
    serialized = serialize_skill(skill)
    delete_skill(cli.principal, skill)
    cli.emit(serialized)
    cli.print_message(f"{options.name} was deleted.")


def _build_spec(options: argparse.Namespace) -> "SkillSpec":
    from agents.skills import SkillSpec, parse_line

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


def _add_declaration_argument(parser: argparse.ArgumentParser) -> None:
    from agents.skills import LINE_SYNTAX

    help_text = f"{LINE_SYNTAX}. Use ${{NAME}} to insert it in the text. Repeatable"
    parser.add_argument("--argument", action="append", metavar="ARGUMENT", help=help_text)


_WRITE_ARGUMENTS = (
    *NAME_ARGUMENT,
    Alternatives(
        Argument("--file FILE", "File with the instructions. -: standard input"),
        Argument("--text TEXT", "The instructions"),
    ),
    Argument("--title TITLE", "Title of the skill"),
    Argument("--description DESCRIPTION", "Purpose of the skill, in one line"),
    _add_declaration_argument,
    build_agents_arguments("Agent to attach the skill to. Repeatable"),
    *ENABLED_ARGUMENTS,
)


def add_wait_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of a run that is waited for."""
    from agents.cli.sessions import WAIT_ARGUMENTS

    add_arguments(parser, WAIT_ARGUMENTS)


_RUN_ARGUMENTS = (
    *NAME_ARGUMENT,
    Argument("KEY=VALUE", "Values of the skill's arguments", dest="values", nargs="*"),
    Argument("--agent SLUG", "Agent that runs the skill"),
    Argument("--dry-run", "Only show the resulting text"),
    add_wait_arguments,
)


VERBS = (
    CommandVerb(
        "list",
        "List skills",
        _list_skills,
        arguments=(Argument("--agent SLUG", "Only skills attached to this agent"),),
        examples=("skills list", "skills list --agent helper --json"),
    ),
    CommandVerb(
        "show",
        "Show a skill",
        _show_skill_text,
        arguments=NAME_ARGUMENT,
        examples=("skills show release-notes",),
    ),
    CommandVerb(
        "add",
        "Create a skill",
        _create_skill,
        arguments=_WRITE_ARGUMENTS,
        examples=(
            "skills add release-notes --text 'Write notes for ${version}.' --argument version!",
            "skills add triage --file triage.md --agent helper",
        ),
    ),
    CommandVerb(
        "set",
        "Update a skill. A change of its text or arguments creates a new version.",
        _update_skill,
        arguments=_WRITE_ARGUMENTS,
        examples=(
            "skills set triage --file triage.md",
            "skills set triage --agent helper --no-enabled",
        ),
    ),
    CommandVerb(
        "run",
        "Run a skill with an agent and wait for the answer",
        _run_skill,
        arguments=_RUN_ARGUMENTS,
        examples=(
            "skills run release-notes version=1.4 --agent helper",
            "skills run release-notes version=1.4 --dry-run",
        ),
    ),
    CommandVerb(
        "remove",
        "Delete a skill",
        _delete_skill,
        arguments=NAME_ARGUMENT,
        examples=("skills remove triage",),
        confirmation="Delete the skill {name}?",
    ),
)
