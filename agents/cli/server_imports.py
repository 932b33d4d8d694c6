"""The command `mcp import`: preview, confirm, create and attach servers."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agents.server_imports import ServerImport, apply_import, plan_import
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    parse_pairs,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.i18n.messages import format_count
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.bundles.archive import MAX_ARCHIVE_BYTES
from mcp_servers.bundles.services import store_bundle
from mcp_servers.cli.definitions import review_new_server
from mcp_servers.cli.discovery import discover_with_progress
from mcp_servers.cli.servers import APPROVE_ARGUMENT
from mcp_servers.import_export import is_registry_text, parse_import
from mcp_servers.import_export.client_files import (
    CLIENT_NAMES,
    UserMachine,
    read_client_config,
    read_text,
)
from mcp_servers.import_export.import_plan import ImportChoices, PlannedServer, plan_entries
from mcp_servers.import_export.registry_client import fetch_registry
from mcp_servers.models import Server
from mcp_servers.presets.catalog import load_catalog
from mcp_servers.presets.installed_programs import InstalledProgram, list_installed_programs

BUNDLE_SUFFIXES = (".mcpb", ".dxt")


@dataclass(kw_only=True)
class ImportReport(ServerImport):
    """An import with its source; printed by `--json`."""

    source: str
    uses_environment: bool = True

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
        return {"source": self.source} | super().as_dict()


_IMPORT_ARGUMENTS = (
    Argument("FILE", "JSON or YAML file, or .mcpb bundle. -: standard input", nargs="?"),
    Argument(
        "--from", "Import from this client on this machine", dest="client", choices=CLIENT_NAMES
    ),
    Argument(
        "--registry URL", "Import from this MCP registry, or the server.json file at this URL"
    ),
    Argument("--search TEXT", "Search in the registry", default=""),
    Argument("--installed", "Import preset servers installed on this machine"),
    Argument("--only NAME", "Import only this server. Repeatable", action="append"),
    Argument("--set K=V", "Value for the placeholder ${K}. Repeatable", action="append"),
    Argument("--allow-private", "Allow private and loopback addresses"),
    *APPROVE_ARGUMENT,
    Argument("--dry-run", "Show the plan without changing anything"),
    Argument("--yes", "Add all valid servers without asking for confirmation"),
)


def _import_servers(cli: CommandContext, options: argparse.Namespace) -> None:
    if options.installed and not (options.file or options.client or options.registry):
        complete_import(cli, options, _plan_installed_servers(cli, options))
        return
    source, text = _read_source(cli, options)
    # The caller's environment; `placeholders` rejects Bonobot's own variables. The authors of a
    # registry or a bundle choose its names, so they get nothing from it.
    uses_environment = not (is_registry_text(text) or _has_bundle(text))
    environment = os.environ if uses_environment else {}
    values = {**environment, **parse_pairs(options.set, "--set")}
    report = _plan_import(cli, options, source, text, values)
    report.uses_environment = uses_environment
    complete_import(cli, options, report)


def complete_import(cli: CommandContext, options: argparse.Namespace, report: ImportReport) -> None:
    """Show the plan, apply it if confirmed, and show the result."""
    _show_plan(cli, report)
    if not options.dry_run and _confirm_import(cli, options, report):
        _apply_import(cli, options, report)
    cli.emit(report.as_dict())
    if report.applied and not cli.as_json:
        _show_result(cli, report)
    failed = any(attempt.problem for attempt in report.attempts.values())
    if report.problems or report.problems_by_name or failed:
        raise CommandFailed


def _read_source(cli: CommandContext, options: argparse.Namespace) -> tuple[str, str]:
    sources = (options.file, options.client, options.registry, options.installed)
    if sum(map(bool, sources)) != 1:
        raise InvalidInput(
            "Specify exactly one source.",
            code="no_source",
            field="FILE",
            remedy="Use FILE, - for standard input, --registry, --installed, or --from with one "
            f"of: {', '.join(CLIENT_NAMES)}.",
        )
    if options.registry:
        text = fetch_registry(
            cli.principal,
            options.registry,
            search=options.search,
            allow_private=options.allow_private,
        )
        return options.registry, text
    if options.file == "-":
        return "standard input", sys.stdin.read()
    if options.file:
        return str(options.file), _read_file(cli, Path(options.file))
    machine = UserMachine(home=Path.home(), folder=Path.cwd(), environ=os.environ)
    file = read_client_config(options.client, machine)
    cli.print_message(f"Reading {file.path}")
    for other_path in file.other_paths:
        cli.print_message(f"Also found, but not read: {other_path}")
    return str(file.path), file.text


def _read_file(cli: CommandContext, path: Path) -> str:
    """Return the text of a file; a bundle is stored, and its configuration returned."""
    if path.suffix not in BUNDLE_SUFFIXES:
        return read_text(path)
    try:
        with path.open("rb") as file:
            return store_bundle(cli.principal, file.read(MAX_ARCHIVE_BYTES + 1))
    except OSError as error:
        raise InvalidInput(
            f"{path} can't be read: {error.strerror}.",
            code="unreadable_file",
            field="FILE",
            remedy="Specify the path of a `.mcpb` file.",
        ) from error


def _has_bundle(text: str) -> bool:
    return any("bundle" in entry.endpoint_config for entry in parse_import(text))


def _plan_import(
    cli: CommandContext, options: argparse.Namespace, source: str, text: str, values: dict[str, str]
) -> ImportReport:
    names = {entry.name for entry in parse_import(text, values=values)}
    _check_entry_names(options, names)
    choices = ImportChoices(
        values=values,
        allow_private=names if options.allow_private else (),
        chosen=options.only,
    )
    plan = plan_import(cli.principal, text, choices)
    return ImportReport(
        source=source, planned=plan.planned, overrides=plan.overrides, shares=plan.shares
    )


def _check_entry_names(options: argparse.Namespace, names: set[str]) -> None:
    if unknown_names := sorted(set(options.only or ()) - names):
        raise InvalidInput(
            f"The source has no server {unknown_names[0]!r}.",
            code="unknown_entry",
            field="--only",
            remedy=f"Use one of: {', '.join(sorted(names))}.",
        )


def _plan_installed_servers(cli: CommandContext, options: argparse.Namespace) -> ImportReport:
    """Plan the known servers that are installed on this machine and not yet in the pool."""
    values = parse_pairs(options.set, "--set")
    pool = Server.objects.for_organization(cli.principal.organization_id).in_organization_pool()
    existing_slugs = set(pool.values_list("slug", flat=True))
    entries = [
        program.build_entry(_collect_secrets(program) | values)
        for program in list_installed_programs(load_catalog())
        if program.preset.slug not in existing_slugs
    ]
    _check_entry_names(options, {entry.name for entry in entries})
    planned_servers = plan_entries(cli.principal, entries, ImportChoices(chosen=options.only))
    return ImportReport(source="loopback address", planned=planned_servers)


def _collect_secrets(program: InstalledProgram) -> dict[str, str]:
    """Return a preset's secrets from the caller's environment; ignores other parameters."""
    names = (p["name"] for p in program.preset.parameters if p.get("secret"))
    return {name: os.environ[name] for name in names if name in os.environ}


def _confirm_import(cli: CommandContext, options: argparse.Namespace, report: ImportReport) -> bool:
    """Return whether to apply: by `--yes`, by answer, or (without a terminal) without problems."""
    shares = [share for share in report.shares if share.action in ("attach", "detach")]
    if not report.ready and not shares:
        return False
    if options.yes:
        return True
    question = f"Add {len(report.ready)} of {len(report.planned)} servers?"
    if sys.stdin.isatty() and not cli.as_json:
        return cli.confirm(question)
    if report.problems:
        cli.print_message(
            "Nothing was added because some servers have problems. To add the rest, use --yes."
        )
        return False
    return True


def _apply_import(cli: CommandContext, options: argparse.Namespace, report: ImportReport) -> None:
    apply_import(cli.principal, report)
    for attempt in discover_with_progress(cli, report.list_enabled_servers()).values():
        if attempt.problem is None:
            review_new_server(cli, attempt.server, approve=options.approve)
        report.record_attempt(attempt)


def _show_plan(cli: CommandContext, report: ImportReport) -> None:
    if cli.as_json:
        return
    rows = [
        (
            planned_server.as_dict()["action"],
            planned_server.entry.name,
            planned_server.entry.transport_type,
            _format_endpoint(planned_server),
        )
        for planned_server in report.planned
    ]
    cli.print_result(
        build_table("ACTION", "NAME", "TRANSPORT", "ENDPOINT", rows=rows, empty="Nothing to add.")
    )
    for share in report.shares:
        tools = ", ".join(share.share.allowed) or "all tools"
        exception_text = f" except {', '.join(share.share.denied)}" if share.share.denied else ""
        cli.print_message(
            make_visible(
                f"{share.action} {share.share.server} → {share.agent}: {tools}{exception_text}"
            )
        )
    for planned_server in report.planned:
        for problem in planned_server.problems:
            _show_problem(cli, planned_server.entry.name, problem, planned_server.entry.line)
    share_problems = {str(s.problem): s.problem for s in report.shares if s.problem}
    for problem in (*report.overrides.problems, *share_problems.values()):
        _show_problem(cli, "", problem, 0)
    for text in dict.fromkeys(_collect_warnings(report) if report.planned else ()):
        cli.print_message(f"! {text}")
    if any(
        problem.code == "missing_value"
        for planned_server in report.planned
        for problem in planned_server.problems
    ):
        sources = "in the environment or with" if report.uses_environment else "with"
        cli.print_message(f"→ Set the values {sources} --set NAME=VALUE.")
    if any(planned_server.private and planned_server.problems for planned_server in report.planned):
        cli.print_message("→ To allow these private addresses, use --allow-private.")


def _collect_warnings(report: ImportReport) -> Sequence[str]:
    """Return the warnings: common ones once, others with the server's name."""
    entries = [item.entry for item in report.planned]
    common_notices = [
        notice for notice in entries[0].notices if all(notice in item.notices for item in entries)
    ]
    general = common_notices if len(entries) > 1 else []
    specific_texts = [
        f"{entry.name}: {notice.detail}"
        for entry in entries
        for notice in entry.notices
        if notice not in general and notice.code != "private_address"
    ]
    general_texts = [notice.detail for notice in (*general, *report.overrides.notices)]
    return [make_visible(text) for text in (*general_texts, *specific_texts)]


def _show_problem(cli: CommandContext, name: str, problem: Problem, line: int) -> None:
    location = (
        f"line {problem.extra.get('line') or line}" if problem.extra.get("line") or line else ""
    )
    position = " ".join(part for part in (location, name, problem.field) if part)
    text = f"✗ {position}: {problem.code}: {problem} {problem.remedy}".strip()
    cli.out.print(make_visible(text), style="red", markup=False)


def _format_endpoint(planned_server: PlannedServer) -> str:
    endpoint_config = planned_server.as_dict()["endpoint_config"]
    return str(
        endpoint_config.get("url")
        or " ".join([endpoint_config.get("command", ""), *endpoint_config.get("args", [])])
    )


def _show_result(cli: CommandContext, report: ImportReport) -> None:
    for name, attempt in report.attempts.items():
        mark, style = ("✓", "green") if attempt.problem is None else ("✗", "red")
        cli.out.print(
            f"{mark} {make_visible(name)}: {make_visible(attempt.format_summary())}",
            style=style,
            markup=False,
        )
    for name, problem in report.problems_by_name.items():
        _show_problem(cli, name, problem, 0)
    cli.print_message(f"{format_count(len(report.added), 'server')} added.")


VERBS = (
    CommandVerb(
        "import",
        "Import servers from a client, a registry, or this machine. Shows a plan first.",
        _import_servers,
        arguments=_IMPORT_ARGUMENTS,
        examples=(
            "mcp import --from claude-desktop --dry-run",
            "mcp import servers.yaml --set API_TOKEN='${MY_TOKEN}'",
            "mcp import weather.mcpb --set WEATHER_API_KEY='${MY_KEY}'",
            "mcp import - --yes --approve < mcp.json",
            "mcp import --registry https://registry.modelcontextprotocol.io --search weather",
            "mcp import --installed --only git --set REPOSITORY=/srv/repository",
        ),
    ),
)
