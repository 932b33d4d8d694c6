"""`bonobot org export|delete`: everything of one organization, taken along or away."""

import argparse
from dataclasses import asdict
from pathlib import Path

from bonobot.cli.group import Cli, table
from bonobot.lib.problems import Invalid
from bonobot.portability import leaving
from bonobot.tenancy.models import Organization


def _current(cli: Cli) -> Organization:
    return Organization.objects.get(pk=cli.principal.organization_id)


def export_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `export`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new or empty one")


def export(cli: Cli, options: argparse.Namespace) -> None:
    """Write everything of an organization into a folder."""
    organization = _current(cli)
    with cli.waiting("Writing"):
        found = leaving.export(cli.principal, organization, options.folder)
    cli.emit(asdict(found) | {"folder": str(options.folder)})
    cli.say(f"{found.rows} rows and {found.audit_rows} of the audit are in {options.folder}.")
    cli.say("Secrets are not in it: they have to be entered again wherever it goes.")


def delete_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `delete`."""
    parser.add_argument("--confirm", metavar="SLUG", help="its name again: nothing brings it back")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed")
    kept = parser.add_mutually_exclusive_group()
    kept.add_argument("--export", type=Path, metavar="FOLDER", help="write everything there first")
    kept.add_argument("--without-export", action="store_true", help="keep nothing, no audit either")


def delete(cli: Cli, options: argparse.Namespace) -> None:
    """Remove an organization with all that is its own."""
    organization = _current(cli)
    if options.dry_run:
        found = leaving.measure(organization)
        rows = [(name.replace("_", " "), value) for name, value in asdict(found).items()]
        cli.emit(asdict(found), table("", "", rows=rows, empty=""))
        return
    if options.confirm != organization.slug:
        raise Invalid(
            "Nothing was removed: its name has to be said again.",
            code="not_confirmed",
            field="--confirm",
            remedy=f"Add --confirm {organization.slug}.",
        )
    if options.export is None and not options.without_export:
        raise Invalid(
            "Nothing was removed: nobody said what is to be kept.",
            code="not_confirmed",
            field="--export",
            remedy="Add --export FOLDER, or --without-export: then its audit is gone, too.",
        )
    with cli.waiting("Removing"):
        found = leaving.delete(cli.principal, organization, options.export)
    cli.emit(asdict(found) | {"folder": str(options.export or "")})
    cli.say(f"{found.organization} is gone, with {found.rows} rows. People's accounts stay.")
