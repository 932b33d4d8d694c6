"""The commands `mcp export` and `mcp apply`."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from agents.config_file.apply_config import apply
from agents.config_file.export_config import as_yaml, export_client_file, export_config
from agents.config_file.plan_changes import ConfigPlan
from agents.config_file.read_config import read_wanted
from agents.models import Agent
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandFailed,
    CommandVerb,
    build_table,
    parse_pairs,
)
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import DiscoveryOutcome, discover_servers
from mcp_servers.import_export.client_files import read_text
from mcp_servers.models import Server

_SIGNS = {"create": "+", "change": "~", "remove": "-", "unchanged": " "}


def _export_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--agent", metavar="SLUG", help="only this agent and what it needs")
    parser.add_argument(
        "--format",
        choices=("bonobot", "mcpServers"),
        default="bonobot",
        help="bonobot: YAML for `apply` (default); mcpServers: JSON for other clients",
    )


def _export(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = None
    if options.agent:
        agent = Agent.objects.get_or_404(cli.principal.organization_id, slug=options.agent)
    if options.format == "mcpServers":
        found = export_client_file(cli.principal, agent)
        text = json.dumps(found, indent=2, ensure_ascii=False)
    else:
        found = export_config(cli.principal, agent)
        text = as_yaml(found).rstrip("\n")
    cli.emit(found)
    if not cli.as_json:
        mine = Server.objects.for_organization(cli.principal.organization_id)
        if private := mine.exclude(scope_id=cli.principal.organization_id).count():
            cli.err.print(f"{private} servers that are private to agents are left out.")
        # Written directly to avoid wrapping, so that it can be read back.
        cli.out.file.write(f"{text}\n")


def _apply_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="YAML or JSON; - reads stdin")
    parser.add_argument("--set", action="append", metavar="K=V", help="a value for ${K}")
    parser.add_argument("--dry-run", action="store_true", help="show the plan, change nothing")
    parser.add_argument("--prune", action="store_true", help="remove what its sections don't name")
    parser.add_argument("--yes", action="store_true", help="do it without asking")
    parser.add_argument("--no-discover", action="store_true", help="don't contact the servers")


def _apply(cli: CommandContext, options: argparse.Namespace) -> None:
    text = sys.stdin.read() if options.file == "-" else read_text(Path(options.file))
    values = {**os.environ, **parse_pairs(options.set, "--set")}
    wanted = read_wanted(text, values)
    trial = apply(cli.principal, wanted, prune=options.prune, dry_run=True)
    _show_plan(cli, trial)
    done: dict[str, Any] = {"applied": False}
    outcomes: dict[str, DiscoveryOutcome] = {}
    if (
        not trial.problems
        and trial.changes
        and not options.dry_run
        and _confirm_apply(cli, options)
    ):
        trial = apply(cli.principal, wanted, prune=options.prune)
        done["applied"] = not trial.problems
        outcomes = {} if options.no_discover else _discover(cli, trial)
    found = trial.as_dict() | done
    cli.emit(found | {"discovery": {name: one.as_dict() for name, one in outcomes.items()}})
    _show_result(cli, trial, done["applied"], outcomes)
    if trial.problems or any(outcome.problem for outcome in outcomes.values()):
        raise CommandFailed


def _confirm_apply(cli: CommandContext, options: argparse.Namespace) -> bool:
    """Return whether to apply; without a terminal, only `--prune` needs `--yes`."""
    if options.yes:
        return True
    if sys.stdin.isatty() and not cli.as_json:
        return cli.confirm("Do it?")
    if options.prune:
        cli.say("Nothing was done: --prune removes things, so say --yes.")
    return not options.prune


def _discover(cli: CommandContext, plan: ConfigPlan) -> dict[str, DiscoveryOutcome]:
    """Discover the servers that are new or whose connection has changed."""
    if plan.problems:
        return {}
    reached = {"description", "approval", "enabled", "only_tools"}
    names = [
        step.name
        for step in plan.changes
        if step.kind == "server"
        and step.action != "remove"
        and not _is_subset(step.fields, reached)
    ]
    pool = Server.objects.for_organization(cli.principal.organization_id).pool()
    return discover_servers(cli, list(pool.filter(name__in=names, enabled=True)))


def _is_subset(fields: tuple[str, ...], known: set[str]) -> bool:
    return bool(fields) and known.issuperset(fields)


def _show_plan(cli: CommandContext, plan: ConfigPlan) -> None:
    if cli.as_json:
        return
    rows = [
        (_SIGNS[step.action], step.action, step.kind, step.name, ", ".join(step.fields))
        for step in plan.steps
    ]
    cli.out.print(
        build_table("", "", "KIND", "NAME", "FIELDS", rows=rows, empty="Nothing is named.")
    )


def _show_result(
    cli: CommandContext, plan: ConfigPlan, applied: bool, outcomes: dict[str, DiscoveryOutcome]
) -> None:
    if cli.as_json:
        return
    for problem in plan.problems:
        _show_problem(cli, problem)
    for name, outcome in outcomes.items():
        mark, style = ("✓", "green") if outcome.problem is None else ("✗", "red")
        cli.out.print(
            f"{mark} {make_visible(name)}: {make_visible(outcome.told())}",
            style=style,
            markup=False,
        )
    if plan.problems:
        cli.say("Nothing was changed.")
    elif not plan.changes:
        cli.say("Nothing to do: everything is as the file wants it.")
    elif applied:
        cli.say(f"{len(plan.changes)} changes made.")


def _show_problem(cli: CommandContext, problem: Problem) -> None:
    document, line = problem.extra.get("document"), problem.extra.get("line")
    where = f"document {document}, line {line}, " if document else ""
    text = f"✗ {where}{problem.field}: {problem.code}: {problem} {problem.remedy}".strip()
    cli.out.print(make_visible(text), style="red", markup=False)


VERBS = (
    CommandVerb(
        "export",
        "Print the configuration without its secrets, to apply it elsewhere.",
        _export,
        _export_arguments,
        ("mcp export > bonobot.yaml", "mcp export --agent demo --format mcpServers"),
    ),
    CommandVerb(
        "apply",
        "Make servers, agents, policies and budgets what a file says: a plan first.",
        _apply,
        _apply_arguments,
        ("mcp apply bonobot.yaml --dry-run", "mcp apply bonobot.yaml --prune --yes"),
    ),
)
