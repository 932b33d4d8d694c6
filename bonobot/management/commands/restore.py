"""`bonobot restore`: restore a backup while every process is stopped."""

import json
import sys
from argparse import ArgumentParser
from dataclasses import asdict
from pathlib import Path
from typing import Any

from django.conf import settings
from django.core.management import call_command
from django.core.management.base import BaseCommand
from django.db import connections

from bonobot.core.cli.command_group import CommandContext
from bonobot.core.problems import Conflict, Problem
from bonobot.maintenance import backups
from bonobot.management.command_groups import COMMAND_HELPS, add_examples
from bonobot.monitoring import health_endpoints


class Command(BaseCommand):
    help = COMMAND_HELPS["restore"]
    requires_system_checks: list[str] = []

    def add_arguments(self, parser: ArgumentParser) -> None:
        add_examples(
            parser, "bonobot restore /backup/2026-11-30", "bonobot restore /backup/2026-11-30 --yes"
        )
        parser.add_argument(
            "folder", type=Path, metavar="FOLDER", help="Folder written by `bonobot backup`"
        )
        parser.add_argument("--yes", action="store_true", help="Don't ask for confirmation")
        parser.add_argument("--json", action="store_true", help="Print JSON")

    def handle(self, **options: Any) -> None:
        """Restore the backup; show a `Problem` and exit with status 1."""
        out, err = self.stdout._out, self.stderr._out
        cli = CommandContext(org=None, as_json=options["json"], stdout=out, stderr=err)
        try:
            self.restore_backup(cli, options)
        except Problem as problem:
            cli.show_problem(problem)
            sys.exit(1)

    def restore_backup(self, cli: CommandContext, options: dict[str, Any]) -> None:
        """Confirm, restore, migrate, and try the keys; raises `Problem`."""
        manifest = backups.read_backup(options["folder"])
        question = f"Replace all data with the backup from {manifest.made_at}?"
        if not options["yes"] and not cli.confirm(question):
            raise Conflict(
                "The restore wasn't confirmed. Nothing was replaced.",
                code="not_confirmed",
                field="--yes",
                remedy="Stop all processes, then confirm with --yes.",
            )
        connections.close_all()
        database = settings.DATABASES["default"]
        backups.restore_backup(options["folder"], database=database, var=Path(settings.BONOBOT_VAR))
        call_command("migrate", interactive=False, verbosity=0)
        unreadable_fields = list(health_endpoints.list_unreadable_fields())
        if options["json"]:
            self.stdout.write(
                json.dumps(asdict(manifest) | {"unopened": unreadable_fields}, indent=2)
            )
        cli.print_message(
            f"The backup from {manifest.made_at} was restored. Verify it: bonobot audit verify"
        )
        if unreadable_fields:
            cli.print_message(
                f"These values were encrypted with other keys: {', '.join(unreadable_fields)}. "
                "Restore these keys, too."
            )
