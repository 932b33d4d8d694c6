"""Verbs of the command group `org` that list and restore deleted objects."""

import argparse

from bonobot.core.cli.command_group import Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table


def _list_deletions(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.deletions import list_deletions

    entries = [
        {
            "id": str(deletion.pk),
            "kind": deletion.kind,
            "name": deletion.name,
            "deleted_by": deletion.deleted_by,
            "expires_at": deletion.expires_at.isoformat(),
        }
        for deletion in list_deletions(cli.principal).defer("rows")
    ]
    rows = [
        (entry["id"], entry["kind"], entry["name"], entry["deleted_by"], entry["expires_at"])
        for entry in entries
    ]
    empty = "Nothing was deleted in the last ten minutes that can be restored."
    columns = ("ID", "TYPE", "NAME", "DELETED BY", "CAN BE RESTORED UNTIL")
    cli.emit(entries, build_table(*columns, rows=rows, empty=empty))


def _restore_deletion(cli: CommandContext, options: argparse.Namespace) -> None:
    from bonobot.accounts.deletions import get_deletion, restore_deletion

    deletion = get_deletion(cli.principal, options.deletion)
    restore_deletion(cli.principal, deletion)
    cli.emit({"kind": deletion.kind, "id": deletion.object_id, "name": deletion.name})
    cli.print_message(f"{deletion.name} was restored.")


VERBS = (
    CommandVerb(
        "deletions",
        "List what was deleted in the last ten minutes and can be restored",
        _list_deletions,
        examples=("org deletions",),
    ),
    CommandVerb(
        "restore",
        "Restore a deleted agent, server, preset, skill, or workflow",
        _restore_deletion,
        arguments=(Argument("ID", "ID, as listed by `org deletions`", dest="deletion"),),
        examples=("org restore 6da5957b-6722-4c63-827e-324928a55bc1",),
    ),
)
