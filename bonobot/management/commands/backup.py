"""`bonobot backup`: back up the database, workspaces and signed checkpoints."""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand

from bonobot.core.cli.command_group import CommandContext
from bonobot.core.problems import Problem
from bonobot.maintenance import backups
from bonobot.management.command_groups import COMMAND_HELPS, add_examples


class Command(BaseCommand):
    help = COMMAND_HELPS["backup"]
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_examples(
            parser,
            "bonobot backup /backup/2026-11-30",
            "bonobot backup /backup/2026-11-30 --database-only --json",
        )
        parser.add_argument("folder", type=Path, metavar="FOLDER", help="New or empty folder")
        parser.add_argument(
            "--database-only", action="store_true", help="Omit workspaces and signed checkpoints"
        )
        parser.add_argument("--json", action="store_true", help="Print JSON")

    def handle(self, **options: Any) -> None:
        """Create the backup; show a `Problem` and exit with status 1."""
        out, err = self.stdout._out, self.stderr._out
        cli = CommandContext(org=None, as_json=options["json"], stdout=out, stderr=err)
        try:
            manifest = backups.create_backup(
                options["folder"],
                database=settings.DATABASES["default"],
                var=Path(settings.BONOBOT_VAR),
                workspaces=not options["database_only"],
            )
        except Problem as problem:
            cli.show_problem(problem)
            sys.exit(1)
        if options["json"]:
            self.stdout.write(json.dumps(asdict(manifest), indent=2))
        cli.print_message(f"{', '.join(manifest.files)} were saved in {options['folder']}.")
        cli.print_message("The backup doesn't contain the keys. Store a copy of them elsewhere.")
