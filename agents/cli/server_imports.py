"""The command `mcp import`: preview, confirm, create and attach servers."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agents.server_imports import ServerImport, carry_out, plan_import
from bonobot.core.cli.command_group import (
    CommandContext,
    CommandFailed,
    CommandVerb,
    build_table,
    parse_pairs,
)
from bonobot.core.problems import InvalidInput, Problem
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.cli.discovery import DiscoveryOutcome, discover_servers, show_review_findings
from mcp_servers.definition_reviews import approve
from mcp_servers.import_export import parse
from mcp_servers.import_export.client_files import CLIENTS, UserMachine, read_client, read_text
from mcp_servers.import_export.import_plan import ImportChoices, PlannedServer, plan_entries
from mcp_servers.models import Server
from mcp_servers.presets.catalog import load
from mcp_servers.presets.installed_programs import InstalledProgram, list_installed_programs


@dataclass(kw_only=True)
class ImportReport(ServerImport):
    """An import with its source and the discovery outcomes; printed by `--json`."""

    source: str
    outcomes: dict[str, DiscoveryOutcome] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the JSON representation."""
        return {"source": self.source} | super().as_dict()

    def entry(self, one: PlannedServer) -> dict[str, Any]:
        """Return one entry, with its discovery outcome."""
        shown = super().entry(one)
        if (outcome := self.outcomes.get(one.entry.name)) is not None:
            shown["discovery"] = outcome.as_dict()
        return shown


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help="JSON or YAML; - reads stdin")
    parser.add_argument("--from", dest="client", choices=CLIENTS, help="a client on this machine")
    parser.add_argument(
        "--installed", action="store_true", help="known servers installed on this machine"
    )
    parser.add_argument("--only", action="append", metavar="NAME", help="only this entry")
    parser.add_argument("--set", action="append", metavar="K=V", help="a value for ${K}")
    parser.add_argument("--allow-private", action="store_true", help="allow private addresses")
    parser.add_argument("--approve", action="store_true", help="approve what is found")
    parser.add_argument("--dry-run", action="store_true", help="show it, change nothing")
    parser.add_argument("--yes", action="store_true", help="add what holds, without asking")


def _import(cli: CommandContext, options: argparse.Namespace) -> None:
    if options.installed and not (options.file or options.client):
        finish(cli, options, _plan_installed_servers(cli, options))
        return
    source, text = _read(cli, options)
    # The caller's environment; `placeholders` rejects Bonobot's own variables.
    values = {**os.environ, **parse_pairs(options.set, "--set")}
    found = _plan_import(cli, options, source, text, values)
    finish(cli, options, found)


def finish(cli: CommandContext, options: argparse.Namespace, found: ImportReport) -> None:
    """Show the plan, apply it if confirmed, and show the result."""
    _show(cli, found)
    if not options.dry_run and _confirm_import(cli, options, found):
        _carry_out(cli, options, found)
    cli.emit(found.as_dict())
    if found.applied and not cli.as_json:
        _show_result(cli, found)
    failed = any(outcome.problem for outcome in found.outcomes.values())
    if found.problems or found.refused or failed:
        raise CommandFailed


def _read(cli: CommandContext, options: argparse.Namespace) -> tuple[str, str]:
    if bool(options.file) + bool(options.client) + options.installed != 1:
        raise InvalidInput(
            "Name one source.",
            code="no_source",
            field="FILE",
            remedy="FILE, or - for stdin, or --installed, or --from with one of: "
            f"{', '.join(CLIENTS)}.",
        )
    if options.file == "-":
        return "standard input", sys.stdin.read()
    if options.file:
        return str(options.file), read_text(Path(options.file))
    machine = UserMachine(home=Path.home(), folder=Path.cwd(), environ=os.environ)
    file = read_client(options.client, machine)
    cli.say(f"Reading {file.path}")
    for other in file.beside:
        cli.say(f"Also there, not read: {other}")
    return str(file.path), file.text


def _plan_import(
    cli: CommandContext, options: argparse.Namespace, source: str, text: str, values: dict[str, str]
) -> ImportReport:
    names = {entry.name for entry in parse(text, values=values)}
    _check_entry_names(options, names)
    choices = ImportChoices(
        values=values,
        allow_private=names if options.allow_private else (),
        chosen=options.only,
    )
    found = plan_import(cli.principal, text, choices)
    return ImportReport(
        source=source, planned=found.planned, wishes=found.wishes, shares=found.shares
    )


def _check_entry_names(options: argparse.Namespace, names: set[str]) -> None:
    if strangers := sorted(set(options.only or ()) - names):
        raise InvalidInput(
            f"There is no entry {strangers[0]!r} in it.",
            code="unknown_entry",
            field="--only",
            remedy=f"Its entries: {', '.join(sorted(names))}.",
        )


def _plan_installed_servers(cli: CommandContext, options: argparse.Namespace) -> ImportReport:
    """Plan the known servers that are installed on this machine and not yet in the pool."""
    given = parse_pairs(options.set, "--set")
    pool = Server.objects.for_organization(cli.principal.organization_id).pool()
    here = set(pool.values_list("slug", flat=True))
    entries = [
        found.entry(_collect_secrets(found) | given)
        for found in list_installed_programs(load())
        if found.preset.slug not in here
    ]
    _check_entry_names(options, {entry.name for entry in entries})
    planned = plan_entries(cli.principal, entries, ImportChoices(chosen=options.only))
    return ImportReport(source="this machine", planned=planned)


def _collect_secrets(found: InstalledProgram) -> dict[str, str]:
    """Return a preset's secrets from the caller's environment; ignores other parameters."""
    names = (p["name"] for p in found.preset.parameters if p.get("secret"))
    return {name: os.environ[name] for name in names if name in os.environ}


def _confirm_import(cli: CommandContext, options: argparse.Namespace, found: ImportReport) -> bool:
    """Return whether to apply: by `--yes`, by answer, or (without a terminal) without problems."""
    shares = [share for share in found.shares if share.action in ("give", "take")]
    if not found.ready and not shares:
        return False
    if options.yes:
        return True
    what = f"Add {len(found.ready)} of {len(found.planned)} servers?"
    if sys.stdin.isatty() and not cli.as_json:
        return cli.confirm(what)
    if found.problems:
        cli.say("Nothing was added, because some of it is refused: --yes adds the rest.")
        return False
    return True


def _carry_out(cli: CommandContext, options: argparse.Namespace, found: ImportReport) -> None:
    carry_out(cli.principal, found)
    switched_on = [server for server in found.added.values() if server.enabled]
    found.outcomes = discover_servers(cli, switched_on)
    for name, outcome in found.outcomes.items():
        if outcome.problem is None:
            server = found.added[name]
            if options.approve:
                approve(cli.principal, server)
                show_review_findings(cli, server)
            waiting = server.definitions.waiting().count()
            found.outcomes[name] = replace(outcome, waiting=waiting)


def _show(cli: CommandContext, found: ImportReport) -> None:
    if cli.as_json:
        return
    rows = [
        (one.as_dict()["action"], one.entry.name, one.entry.transport_type, _format_endpoint(one))
        for one in found.planned
    ]
    cli.out.print(
        build_table("", "NAME", "TRANSPORT", "WHERE", rows=rows, empty="There is nothing to add.")
    )
    for share in found.shares:
        tools = ", ".join(share.share.allowed) or "all tools"
        without = f" but {', '.join(share.share.denied)}" if share.share.denied else ""
        cli.say(
            make_visible(f"{share.action} {share.share.server} → {share.agent}: {tools}{without}")
        )
    for one in found.planned:
        for problem in one.problems:
            _show_problem(cli, one.entry.name, problem, one.entry.line)
    of_shares = {str(s.problem): s.problem for s in found.shares if s.problem}
    for problem in (*found.wishes.problems, *of_shares.values()):
        _show_problem(cli, "", problem, 0)
    for text in dict.fromkeys(_collect_warnings(found) if found.planned else ()):
        cli.say(f"! {text}")
    if any(problem.code == "missing_value" for one in found.planned for problem in one.problems):
        cli.say("→ Give values in the environment, or by --set NAME=VALUE.")
    if any(one.private and one.problems for one in found.planned):
        cli.say("→ If these private addresses are meant: --allow-private")


def _collect_warnings(found: ImportReport) -> Sequence[str]:
    """Return the warnings: common ones once, others with the server's name."""
    entries = [one.entry for one in found.planned]
    of_all = [
        notice for notice in entries[0].notices if all(notice in one.notices for one in entries)
    ]
    general = of_all if len(entries) > 1 else []
    own = [
        f"{entry.name}: {notice.detail}"
        for entry in entries
        for notice in entry.notices
        if notice not in general and notice.code != "private_address"
    ]
    said = [notice.detail for notice in (*general, *found.wishes.notices)]
    return [make_visible(text) for text in (*said, *own)]


def _show_problem(cli: CommandContext, name: str, problem: Problem, line: int) -> None:
    at = f"line {problem.extra.get('line') or line}" if problem.extra.get("line") or line else ""
    where = " ".join(part for part in (at, name, problem.field) if part)
    text = f"✗ {where}: {problem.code}: {problem} {problem.remedy}".strip()
    cli.out.print(make_visible(text), style="red", markup=False)


def _format_endpoint(one: PlannedServer) -> str:
    shown = one.as_dict()["endpoint_config"]
    return str(shown.get("url") or " ".join([shown.get("command", ""), *shown.get("args", [])]))


def _show_result(cli: CommandContext, found: ImportReport) -> None:
    for name, outcome in found.outcomes.items():
        mark, style = ("✓", "green") if outcome.problem is None else ("✗", "red")
        cli.out.print(
            f"{mark} {make_visible(name)}: {make_visible(outcome.told())}",
            style=style,
            markup=False,
        )
    for name, problem in found.refused.items():
        _show_problem(cli, name, problem, 0)
    cli.say(f"{len(found.added)} servers added.")


VERBS = (
    CommandVerb(
        "import",
        "Add the servers of a client's configuration: shown first, then added and discovered.",
        _import,
        _import_arguments,
        (
            "mcp import --from claude-desktop --dry-run",
            "mcp import servers.yaml --set API_TOKEN='${MY_TOKEN}'",
            "mcp import - --yes --approve < mcp.json",
            "mcp import --installed --only git --set REPOSITORY=/srv/repository",
        ),
    ),
)
