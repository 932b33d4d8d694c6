"""`bonobot skills …`: named instructions, written, shown and run."""

import argparse
from typing import Any

from agents.models import Skill
from agents.named import agents_of
from agents.skills.keeping import SkillSpec, named, remove_skill, run_skill, save_skill
from agents.skills.lines import FORM, read_line
from agents.skills.rendering import render, text_of
from bonobot.cli.agents import find
from bonobot.cli.group import Cli, Verb, pairs, table
from bonobot.cli.inputs import read_text
from bonobot.cli.running import declare_waiting, finish
from bonobot.cli.written import declare_given, declare_name, declare_switch, given_to
from bonobot.lib.problems import Conflict, Invalid
from bonobot.lib.untrusted import visible


def as_json(skill: Skill) -> dict[str, Any]:
    """Return a skill as programs read it."""
    names = ("name", "title", "description", "text", "arguments", "enabled", "version", "digest")
    found = {name: getattr(skill, name) for name in names}
    return {"id": str(skill.pk), **found, "agents": agents_of(skill)}


def _list(cli: Cli, options: argparse.Namespace) -> None:
    rows = Skill.objects.for_organization(cli.principal.organization_id)
    if options.agent:
        rows = rows.filter(given__agent=find(cli, options.agent))
    found = [as_json(row) for row in rows]
    shown = [
        (
            one["name"] if one["enabled"] else f"{one['name']} (off)",
            one["version"],
            ", ".join(argument["name"] for argument in one["arguments"]),
            ", ".join(one["agents"]) or "–",
            one["description"] or one["title"],
        )
        for one in found
    ]
    empty = "No skills yet. Write one: bonobot skills add NAME --file FILE"
    columns = ("NAME", "VERSION", "ARGUMENTS", "AGENTS", "WHAT IT IS FOR")
    cli.emit(found, table(*columns, rows=shown, empty=empty))


def _show(cli: Cli, options: argparse.Namespace) -> None:
    skill = named(cli.principal, options.name)
    cli.emit(as_json(skill))
    cli.say(visible(skill.text, len(skill.text)))


def _add(cli: Cli, options: argparse.Namespace) -> None:
    if Skill.objects.filter(
        organization_id=cli.principal.organization_id, name=options.name
    ).exists():
        raise Conflict(
            f"There is a skill {options.name!r} already.",
            code="name_taken",
            field="NAME",
            remedy=f"Change it: bonobot skills set {options.name} …",
        )
    _told(cli, save_skill(cli.principal, _spec(options)))


def _set(cli: Cli, options: argparse.Namespace) -> None:
    skill = named(cli.principal, options.name)
    _told(cli, save_skill(cli.principal, _spec(options), skill))


def _told(cli: Cli, skill: Skill) -> None:
    cli.emit(as_json(skill))
    cli.say(
        f"{skill.name} is at version {skill.version}; it is given to: "
        f"{', '.join(agents_of(skill)) or 'no agent'}."
    )


def _run(cli: Cli, options: argparse.Namespace) -> None:
    skill = named(cli.principal, options.name)
    given = pairs(options.values, "KEY=VALUE")
    if options.dry_run:
        text = render(text_of(skill), given)
        cli.emit({"text": text})
        cli.say(visible(text, len(text)))
        return
    if not options.agent:
        raise Invalid(
            "No agent is named.", field="--agent", remedy="Add --agent SLUG, or --dry-run."
        )
    finish(cli, run_skill(cli.principal, skill, find(cli, options.agent), given), options)


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    skill = named(cli.principal, options.name)
    found = as_json(skill)
    remove_skill(cli.principal, skill)
    cli.emit(found)
    cli.say(f"{options.name} is gone.")


def _spec(options: argparse.Namespace) -> SkillSpec:
    return SkillSpec(
        name=options.name,
        title=options.title,
        description=options.description,
        text=options.text if options.file is None else read_text(options.file),
        arguments=None
        if options.argument is None
        else [read_line(one).as_dict() for one in options.argument],
        enabled=options.enabled,
        agents=given_to(options),
    )


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="SLUG", help="those that an agent has")


def _write_arguments(parser: argparse.ArgumentParser) -> None:
    declare_name(parser)
    said = parser.add_mutually_exclusive_group()
    said.add_argument("--file", help="file with the instructions; - reads standard input")
    said.add_argument("--text", help="the instructions")
    parser.add_argument("--title")
    parser.add_argument("--description", help="what it is for, in a line")
    parser.add_argument(
        "--argument",
        action="append",
        metavar="ARGUMENT",
        help=f"{FORM}; it stands in the text as ${{NAME}}; several may be given",
    )
    declare_given(parser, "agents that have it")
    declare_switch(parser)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    declare_name(parser)
    parser.add_argument("values", metavar="KEY=VALUE", nargs="*", help="values of its arguments")
    parser.add_argument("--agent", metavar="SLUG", help="the agent that runs it")
    parser.add_argument("--dry-run", action="store_true", help="only show the text")
    declare_waiting(parser)


VERBS = (
    Verb(
        "list",
        "List the skills.",
        _list,
        _list_arguments,
        ("skills list", "skills list --agent helper --json"),
    ),
    Verb("show", "Show a skill.", _show, declare_name, ("skills show release-notes",)),
    Verb(
        "add",
        "Write a skill.",
        _add,
        _write_arguments,
        (
            "skills add release-notes --text 'Write notes for ${version}.' --argument version!",
            "skills add triage --file triage.md --agent helper",
        ),
    ),
    Verb(
        "set",
        "Change a skill; another text or other arguments are a new version.",
        _set,
        _write_arguments,
        ("skills set triage --file triage.md", "skills set triage --agent helper --off"),
    ),
    Verb(
        "run",
        "Give a skill to an agent as a message and wait for its answer.",
        _run,
        _run_arguments,
        (
            "skills run release-notes version=1.4 --agent helper",
            "skills run release-notes version=1.4 --dry-run",
        ),
    ),
    Verb("remove", "Remove a skill.", _remove, declare_name, ("skills remove triage",)),
)
