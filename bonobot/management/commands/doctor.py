"""`bonobot doctor`: check this installation and suggest fixes."""

import json
import sys
from argparse import ArgumentParser
from typing import IO, Any, cast

from django.core.management.base import BaseCommand
from rich.table import Table
from rich.text import Text

from agents.doctor_checks import SettingsFinding, run_settings_checks
from bonobot.core.cli.pipe_console import PipeConsole
from bonobot.management.command_groups import COMMAND_HELPS, add_examples

MARKS = {"ok": ("✓", "green"), "warning": ("!", "yellow"), "failed": ("✗", "red")}


class Command(BaseCommand):
    help = COMMAND_HELPS["doctor"]
    requires_system_checks: list[str] = []  # it reports problems itself

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_examples(parser, "bonobot doctor", "bonobot doctor --json")
        parser.add_argument("--json", action="store_true", help="Print JSON")

    def handle(self, **options: Any) -> None:
        findings = list(run_settings_checks())
        failed = sum(finding.state == "failed" for finding in findings)
        if options["json"]:
            checks = [finding.as_dict() for finding in findings]
            self.stdout.write(json.dumps({"ok": not failed, "checks": checks}, indent=2))
        else:
            console = PipeConsole(file=cast(IO[str], self.stdout._out), highlight=False)
            console.print(build_findings_table(findings))
        if failed:
            self.stderr.write(f"{failed} of {len(findings)} checks failed.")
            sys.exit(1)


def build_findings_table(findings: list[SettingsFinding]) -> Table:
    """Return a table of the findings with their fixes."""
    findings_table = Table(box=None, show_header=False, padding=(0, 1))
    for finding in findings:
        mark, color = MARKS[finding.state]
        text = Text(finding.detail)
        if finding.fix:
            text.append(f"\n→ {finding.fix}", style="bold")
        findings_table.add_row(Text(mark, style=color), finding.name, text)
    return findings_table
