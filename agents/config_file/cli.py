"""The commands `mcp export` and `mcp apply`."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from agents.config_file.apply_config import apply_config
from agents.config_file.export_config import export_client_file, export_config, to_yaml
from agents.config_file.plan_changes import ConfigPlan
from agents.config_file.read_config import allow_private_addresses, read_config_file
from agents.models import Agent
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    parse_pairs,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import discover_with_progress
from mcp_servers.discovery import DiscoveryAttempt
from mcp_servers.import_export.client_files import read_text
from mcp_servers.models import Server

_ACTION_SIGNS = {"create": "+", "change": "~", "remove": "-", "unchanged": " "}


_EXPORT_ARGUMENTS = (
    Argument("--agent SLUG", "Export only this agent and what it requires"),
    Argument(
        "--format",
        "bonobot: YAML for `mcp apply` (default). mcpServers: JSON for MCP clients",
        choices=("bonobot", "mcpServers"),
        default="bonobot",
    ),
)


def _handle_export(cli: CommandContext, options: argparse.Namespace) -> None:
    agent = None
    if options.agent:
        agent = cli.get_row(Agent, slug=options.agent)
    if options.format == "mcpServers":
        document = export_client_file(cli.principal, agent)
        text = json.dumps(document, indent=2, ensure_ascii=False)
    else:
        document = export_config(cli.principal, agent)
        text = to_yaml(document).rstrip("\n")
    cli.emit(document)
    if not cli.as_json:
        servers = Server.objects.for_organization(cli.principal.organization_id)
        if private := servers.exclude(scope_id=cli.principal.organization_id).count():
            cli.err.print(
                "1 server that is private to an agent isn't exported."
                if private == 1
                else f"{private} servers that are private to an agent aren't exported."
            )
        # Written directly to avoid wrapping, so that it can be read back.
        cli.out.file.write(f"{text}\n")


_APPLY_ARGUMENTS = (
    Argument("FILE", "YAML or JSON file. -: standard input"),
    Argument("--set K=V", "Value for the placeholder ${K}. Repeatable", action="append"),
    Argument("--dry-run", "Show the plan without changing anything"),
    Argument("--prune", "Delete objects that the file's sections don't list"),
    Argument("--yes", "Don't ask for confirmation"),
    Argument("--allow-private", "Allow private and loopback addresses"),
    Argument("--no-discover", "Don't connect to the servers"),
)


def _handle_apply(cli: CommandContext, options: argparse.Namespace) -> None:
    text = sys.stdin.read() if options.file == "-" else read_text(Path(options.file))
    values = {**os.environ, **parse_pairs(options.set, "--set")}
    config = read_config_file(text, values)
    if options.allow_private:
        allow_private_addresses(config)
    plan = apply_config(cli.principal, config, prune=options.prune, dry_run=True)
    _show_plan(cli, plan)
    for notice in config.notices if not cli.as_json else ():
        cli.print_message(f"! {notice}")
    status: dict[str, Any] = {"applied": False}
    outcomes: dict[str, DiscoveryAttempt] = {}
    if not plan.problems and plan.changes and not options.dry_run and _confirm_apply(cli, options):
        plan = apply_config(cli.principal, config, prune=options.prune, confirmed=plan)
        status["applied"] = not plan.problems
        outcomes = {} if options.no_discover else _discover_changed_servers(cli, plan)
    result = plan.as_dict() | {"notices": config.notices} | status
    cli.emit(
        result | {"discovery": {name: discovery.as_dict() for name, discovery in outcomes.items()}}
    )
    _show_result(cli, plan, status["applied"], outcomes)
    if plan.problems or any(outcome.problem for outcome in outcomes.values()):
        raise CommandFailed


def _confirm_apply(cli: CommandContext, options: argparse.Namespace) -> bool:
    """Return whether to apply; without a terminal, only `--prune` needs `--yes`."""
    if options.yes:
        return True
    if sys.stdin.isatty() and not cli.as_json:
        return cli.confirm("Apply these changes?")
    if options.prune:
        cli.print_message("Nothing was changed. --prune deletes objects, so it requires --yes.")
    return not options.prune


def _discover_changed_servers(cli: CommandContext, plan: ConfigPlan) -> dict[str, DiscoveryAttempt]:
    """Discover the servers that are new or whose connection has changed."""
    if plan.problems:
        return {}
    unrelated_fields = {"description", "approval", "enabled", "only_tools"}
    names = [
        step.name
        for step in plan.changes
        if step.kind == "server"
        and step.action != "remove"
        and not _is_subset(step.fields, unrelated_fields)
    ]
    pool = Server.objects.for_organization(cli.principal.organization_id).in_organization_pool()
    return discover_with_progress(cli, list(pool.filter(name__in=names, enabled=True)))


def _is_subset(fields: tuple[str, ...], known_fields: set[str]) -> bool:
    return bool(fields) and known_fields.issuperset(fields)


def _show_plan(cli: CommandContext, plan: ConfigPlan) -> None:
    if cli.as_json:
        return
    rows = [
        (_ACTION_SIGNS[step.action], step.action, step.kind, step.name, ", ".join(step.fields))
        for step in plan.steps
    ]
    cli.print_result(
        build_table(
            "", "ACTION", "KIND", "NAME", "FIELDS", rows=rows, empty="The file lists no objects."
        )
    )


def _show_result(
    cli: CommandContext, plan: ConfigPlan, applied: bool, outcomes: dict[str, DiscoveryAttempt]
) -> None:
    if cli.as_json:
        return
    for problem in plan.problems:
        _show_problem(cli, problem)
    codes = {problem.code for problem in plan.problems}
    if "missing_value" in codes:
        cli.print_message("→ Set the values in the environment or with --set NAME=VALUE.")
    if "private_address" in codes:
        cli.print_message("→ To allow these private addresses, use --allow-private.")
    for name, outcome in outcomes.items():
        mark, style = ("✓", "green") if outcome.problem is None else ("✗", "red")
        cli.out.print(
            f"{mark} {make_visible(name)}: {make_visible(outcome.format_summary())}",
            style=style,
            markup=False,
        )
    if plan.problems:
        cli.print_message("Nothing was changed.")
    elif not plan.changes:
        cli.print_message("No changes. Everything already matches the file.")
    elif applied:
        cli.print_message(f"{format_count(len(plan.changes), 'change')} applied.")


def _show_problem(cli: CommandContext, problem: Problem) -> None:
    document, line = problem.extra.get("document"), problem.extra.get("line")
    position = f"document {document}, line {line}, " if document else ""
    text = f"✗ {position}{problem.field}: {problem.code}: {problem} {problem.remedy}".strip()
    cli.out.print(make_visible(text), style="red", markup=False)


VERBS = (
    CommandVerb(
        "export",
        "Export the configuration without secrets, to apply it elsewhere",
        _handle_export,
        arguments=_EXPORT_ARGUMENTS,
        examples=("mcp export > bonobot.yaml", "mcp export --agent demo --format mcpServers"),
    ),
    CommandVerb(
        "apply",
        "Apply servers, agents, policies, and budgets from a file. Shows a plan first.",
        _handle_apply,
        arguments=_APPLY_ARGUMENTS,
        examples=("mcp apply bonobot.yaml --dry-run", "mcp apply bonobot.yaml --prune --yes"),
    ),
)
