"""`bonobot mcp import`: servers that other clients know, shown first, then added (B1, E1)."""

import argparse
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from agents.importing import Import, carry_out, plan_import
from bonobot.cli.definitions import tell_held
from bonobot.cli.group import Cli, Failed, Verb, pairs, table
from bonobot.cli.sweeping import Outcome, sweep
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.untrusted import visible
from mcp_servers.approval import approve
from mcp_servers.client_files import CLIENTS, Machine, read_client, read_text
from mcp_servers.importing import Choices, Planned, plan_entries
from mcp_servers.installed import Installed, installed
from mcp_servers.models import Server
from mcp_servers.portability import parse
from mcp_servers.presets.catalogue import load


@dataclass(kw_only=True)
class Sourced(Import):
    """An import with where it was read and what the servers answered; what `--json` prints."""

    source: str
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return everything that programs want to know of it."""
        return {"source": self.source} | super().as_dict()

    def entry(self, one: Planned) -> dict[str, Any]:
        """Return one entry, with what came of asking it."""
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


def _import(cli: Cli, options: argparse.Namespace) -> None:
    if options.installed and not (options.file or options.client):
        finish(cli, options, _planned_installed(cli, options))
        return
    source, text = _read(cli, options)
    # The caller's own environment; placeholders refuse what is Bonobot's in it.
    values = {**os.environ, **pairs(options.set, "--set")}
    found = _planned(cli, options, source, text, values)
    finish(cli, options, found)


def finish(cli: Cli, options: argparse.Namespace, found: Sourced) -> None:
    """Show what was planned, add it as the person decides, and tell how it went."""
    _show(cli, found)
    if not options.dry_run and _agreed(cli, options, found):
        _carry_out(cli, options, found)
    cli.emit(found.as_dict())
    if found.applied and not cli.as_json:
        _tell(cli, found)
    failed = any(outcome.problem for outcome in found.outcomes.values())
    if found.problems or found.refused or failed:
        raise Failed


def _read(cli: Cli, options: argparse.Namespace) -> tuple[str, str]:
    if bool(options.file) + bool(options.client) + options.installed != 1:
        raise Invalid(
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
    machine = Machine(home=Path.home(), folder=Path.cwd(), environ=os.environ)
    file = read_client(options.client, machine)
    cli.say(f"Reading {file.path}")
    for other in file.beside:
        cli.say(f"Also there, not read: {other}")
    return str(file.path), file.text


def _planned(
    cli: Cli, options: argparse.Namespace, source: str, text: str, values: dict[str, str]
) -> Sourced:
    names = {entry.name for entry in parse(text, values=values)}
    _refuse_strangers(options, names)
    choices = Choices(
        values=values,
        allow_private=names if options.allow_private else (),
        chosen=options.only,
    )
    found = plan_import(cli.principal, text, choices)
    return Sourced(source=source, planned=found.planned, wishes=found.wishes, shares=found.shares)


def _refuse_strangers(options: argparse.Namespace, names: set[str]) -> None:
    if strangers := sorted(set(options.only or ()) - names):
        raise Invalid(
            f"There is no entry {strangers[0]!r} in it.",
            code="unknown_entry",
            field="--only",
            remedy=f"Its entries: {', '.join(sorted(names))}.",
        )


def _planned_installed(cli: Cli, options: argparse.Namespace) -> Sourced:
    """Plan the known servers that are installed here, but for those that the pool has already."""
    given = pairs(options.set, "--set")
    pool = Server.objects.for_organization(cli.principal.organization_id).pool()
    here = set(pool.values_list("slug", flat=True))
    entries = [
        found.entry(_secrets(found) | given)
        for found in installed(load())
        if found.preset.slug not in here
    ]
    _refuse_strangers(options, {entry.name for entry in entries})
    planned = plan_entries(cli.principal, entries, Choices(chosen=options.only))
    return Sourced(source="this machine", planned=planned)


def _secrets(found: Installed) -> dict[str, str]:
    """Return a preset's secrets from the caller's environment; other names may mean anything."""
    names = (p["name"] for p in found.preset.parameters if p.get("secret"))
    return {name: os.environ[name] for name in names if name in os.environ}


def _agreed(cli: Cli, options: argparse.Namespace, found: Sourced) -> bool:
    """Tell whether to go on: said before, asked now, or (without a terminal) nothing refused."""
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


def _carry_out(cli: Cli, options: argparse.Namespace, found: Sourced) -> None:
    carry_out(cli.principal, found)
    switched_on = [server for server in found.added.values() if server.enabled]
    found.outcomes = sweep(cli, switched_on)
    for name, outcome in found.outcomes.items():
        if outcome.problem is None:
            server = found.added[name]
            if options.approve:
                approve(cli.principal, server)
                tell_held(cli, server)
            waiting = server.definitions.waiting().count()
            found.outcomes[name] = replace(outcome, waiting=waiting)


def _show(cli: Cli, found: Sourced) -> None:
    if cli.as_json:
        return
    rows = [
        (one.as_dict()["action"], one.entry.name, one.entry.transport_type, _where(one))
        for one in found.planned
    ]
    cli.out.print(
        table("", "NAME", "TRANSPORT", "WHERE", rows=rows, empty="There is nothing to add.")
    )
    for share in found.shares:
        tools = ", ".join(share.share.allowed) or "all tools"
        without = f" but {', '.join(share.share.denied)}" if share.share.denied else ""
        cli.say(visible(f"{share.action} {share.share.server} → {share.agent}: {tools}{without}"))
    for one in found.planned:
        for problem in one.problems:
            _show_problem(cli, one.entry.name, problem, one.entry.line)
    of_shares = {str(s.problem): s.problem for s in found.shares if s.problem}
    for problem in (*found.wishes.problems, *of_shares.values()):
        _show_problem(cli, "", problem, 0)
    for text in dict.fromkeys(_notices(found) if found.planned else ()):
        cli.say(f"! {text}")
    if any(problem.code == "missing_value" for one in found.planned for problem in one.problems):
        cli.say("→ Give values in the environment, or by --set NAME=VALUE.")
    if any(one.private and one.problems for one in found.planned):
        cli.say("→ If these private addresses are meant: --allow-private")


def _notices(found: Sourced) -> Sequence[str]:
    """Return what should be known: of the whole text once, of a server with its name."""
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
    return [visible(text) for text in (*said, *own)]


def _show_problem(cli: Cli, name: str, problem: Problem, line: int) -> None:
    at = f"line {problem.extra.get('line') or line}" if problem.extra.get("line") or line else ""
    where = " ".join(part for part in (at, name, problem.field) if part)
    text = f"✗ {where}: {problem.code}: {problem} {problem.remedy}".strip()
    cli.out.print(visible(text), style="red", markup=False)


def _where(one: Planned) -> str:
    shown = one.as_dict()["endpoint_config"]
    return str(shown.get("url") or " ".join([shown.get("command", ""), *shown.get("args", [])]))


def _tell(cli: Cli, found: Sourced) -> None:
    for name, outcome in found.outcomes.items():
        mark, style = ("✓", "green") if outcome.problem is None else ("✗", "red")
        cli.out.print(
            f"{mark} {visible(name)}: {visible(outcome.told())}", style=style, markup=False
        )
    for name, problem in found.refused.items():
        _show_problem(cli, name, problem, 0)
    cli.say(f"{len(found.added)} servers added.")


VERBS = (
    Verb(
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
