"""The command group `org`."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agents import organization_offboarding
from agents.kill_switch import KillSwitchImpact, halt_organization, load_impact, resume_organization
from bonobot.accounts.models import Organization
from bonobot.accounts.principals import build_cli_principal
from bonobot.accounts.services import save_organization
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table
from bonobot.core.problems import InvalidInput


def _get_organization(cli: CommandContext) -> Organization:
    return Organization.objects.get(pk=cli.principal.organization_id)


def add_export_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="a new or empty one")


def handle_export(cli: CommandContext, options: argparse.Namespace) -> None:
    """Write everything of an organization into a folder."""
    organization = _get_organization(cli)
    with cli.show_spinner("Writing"):
        result = organization_offboarding.export_organization(
            cli.principal, organization, options.folder
        )
    cli.emit(asdict(result) | {"folder": str(options.folder)})
    cli.print_message(
        f"{result.rows} rows and {result.audit_rows} of the audit are in {options.folder}."
    )
    cli.print_message("Secrets are not in it: they have to be entered again wherever it goes.")


def add_delete_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `delete`."""
    parser.add_argument("--confirm", metavar="SLUG", help="its name again: nothing brings it back")
    parser.add_argument("--dry-run", action="store_true", help="say what would be removed")
    export_options = parser.add_mutually_exclusive_group()
    export_options.add_argument(
        "--export", type=Path, metavar="FOLDER", help="write everything there first"
    )
    export_options.add_argument(
        "--without-export", action="store_true", help="keep nothing, no audit either"
    )


def handle_delete(cli: CommandContext, options: argparse.Namespace) -> None:
    """Remove an organization with all that is its own."""
    organization = _get_organization(cli)
    if options.dry_run:
        result = organization_offboarding.count_organization_rows(organization)
        rows = [(name.replace("_", " "), value) for name, value in asdict(result).items()]
        cli.emit(asdict(result), build_table("", "", rows=rows, empty=""))
        return
    if options.confirm != organization.slug:
        raise InvalidInput(
            "Nothing was removed: its name has to be said again.",
            code="not_confirmed",
            field="--confirm",
            remedy=f"Add --confirm {organization.slug}.",
        )
    if options.export is None and not options.without_export:
        raise InvalidInput(
            "Nothing was removed: nobody said what is to be kept.",
            code="not_confirmed",
            field="--export",
            remedy="Add --export FOLDER, or --without-export: then its audit is gone, too.",
        )
    with cli.show_spinner("Removing"):
        result = organization_offboarding.delete_organization(
            cli.principal, organization, options.export
        )
    cli.emit(asdict(result) | {"folder": str(options.export or "")})
    cli.print_message(
        f"{result.organization} is gone, with {result.rows} rows. People's accounts stay."
    )


# An option that isn't given, as opposed to `default`.
UNSET: Any = object()
FLAGS = ("four_eyes", "second_factor", "single_sign_on")


def _serialize_organization(organization: Organization, impact: KillSwitchImpact) -> dict[str, Any]:
    return {
        "slug": organization.slug,
        "name": organization.name,
        "halted_at": organization.halted_at,
        "four_eyes": organization.four_eyes,
        "second_factor": organization.second_factor,
        "single_sign_on": organization.single_sign_on,
        "approval_hours": organization.approval_hours,
        "calls_per_minute": organization.calls_per_minute,
        "audit_days": organization.audit_days,
        **impact.as_dict(),
    }


def _show_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    organization = _get_organization(cli)
    serialized = _serialize_organization(organization, load_impact(organization))
    rows = [
        (name.replace("_", " "), value) for name, value in serialized.items() if value is not None
    ]
    cli.emit(serialized, build_table("", "", rows=rows, empty=""))
    if organization.halted_at is not None:
        cli.print_message(
            f"It is halted. Let it go on: bonobot org resume --org {organization.slug}"
        )


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", help="short name, as `--org` takes it")
    parser.add_argument("--name", default="", help="what people read (default: the slug)")


def _create_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    organization = Organization(slug=options.slug, name=options.name or options.slug)
    # The principal belongs to no organization yet; its audit shows a CLI principal.
    save_organization(build_cli_principal(organization), organization, adding=True)
    cli.emit(_serialize_organization(organization, load_impact(organization)))
    cli.print_message(
        f"{organization.slug} is made. Invite its owner: bonobot members invite EMAIL --role owner"
    )


def _parse_number_or_default(text: str) -> int | None:
    """Parse a whole number; `default` (the platform's setting) becomes None."""
    return None if text == "default" else int(text)


def _add_update_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calls-per-minute",
        type=_parse_number_or_default,
        metavar="N",
        default=UNSET,
        help="of all agents and tokens together; 0: no limit, default: as the settings say",
    )
    parser.add_argument(
        "--approval-hours",
        type=_parse_number_or_default,
        metavar="N",
        default=UNSET,
        help="hours to answer a call that waits; default: as the settings say",
    )
    parser.add_argument(
        "--audit-days",
        type=_parse_number_or_default,
        metavar="N",
        default=UNSET,
        help="days that rows of the audit stay; 0: for ever, default: as the settings say",
    )
    parser.add_argument(
        "--four-eyes",
        action=argparse.BooleanOptionalAction,
        default=UNSET,
        help="nobody approves the calls they asked for",
    )
    parser.add_argument(
        "--second-factor",
        action=argparse.BooleanOptionalAction,
        default=UNSET,
        help="everybody needs a second factor",
    )
    parser.add_argument(
        "--single-sign-on",
        action=argparse.BooleanOptionalAction,
        default=UNSET,
        help="everybody signs in by an identity provider; --no-… lets passwords in again",
    )


def _update_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    names = ("calls_per_minute", "approval_hours", "audit_days", *FLAGS)
    changes = {name: value for name in names if (value := getattr(options, name)) is not UNSET}
    if not changes:
        raise InvalidInput(
            "Nothing is said.",
            field="org set",
            remedy="Give one of the options that `bonobot org set --help` lists.",
        )
    organization = _get_organization(cli)
    for name, value in changes.items():
        setattr(organization, name, value)
    save_organization(cli.principal, organization, adding=False)
    cli.emit(_serialize_organization(organization, load_impact(organization)))
    cli.print_message(
        f"{organization.slug}: {', '.join(f'{name} {value}' for name, value in changes.items())}"
    )


def _add_halt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", default="", help="for the audit, and those whose sessions end")
    parser.add_argument("--yes", action="store_true", help="don't ask first")


def _halt_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    organization = _get_organization(cli)
    impact = load_impact(organization)
    question = (
        f"Halt {organization.slug}? {impact.running} running and {impact.waiting} waiting sessions "
        f"are cancelled, {impact.agents} agents and {impact.servers} servers stand still."
    )
    if not options.yes and not cli.confirm(question):
        raise InvalidInput(
            f"Nothing was halted. It would stop {impact.running} running and {impact.waiting} "
            f"waiting sessions of {impact.agents} agents.",
            code="not_confirmed",
            field="--yes",
            remedy="Confirm it with --yes.",
        )
    organization = halt_organization(cli.principal, options.reason)
    cli.emit(_serialize_organization(organization, impact))
    cli.print_message(
        f"{organization.slug} is halted: every call and model turn is refused from now on."
    )
    cli.print_message(f"Let it go on: bonobot org resume --org {organization.slug}")


def _resume_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    organization = resume_organization(cli.principal)
    cli.emit(_serialize_organization(organization, load_impact(organization)))
    cli.print_message(f"{organization.slug} goes on; sessions that were cancelled stay so.")


VERBS = (
    CommandVerb(
        "show",
        "Show the organization, and what a halt would stop.",
        _show_organization,
        examples=("org show",),
    ),
    CommandVerb(
        "set",
        "Set the organization's rate, how calls that wait are answered, how long the audit stays.",
        _update_organization,
        _add_update_arguments,
        (
            "org set --calls-per-minute 600",
            "org set --audit-days 365",
            "org set --calls-per-minute default --four-eyes",
        ),
    ),
    CommandVerb(
        "halt",
        "Stop everything: refuse every call and turn, cancel every session.",
        _halt_organization,
        _add_halt_arguments,
        ("org halt", 'org halt --yes --reason "leaked credential" --org acme'),
    ),
    CommandVerb(
        "export",
        "Write everything of the organization into a folder.",
        handle_export,
        add_export_arguments,
        ("org export acme-2026-11-22 --org acme",),
    ),
    CommandVerb(
        "delete",
        "Remove the organization with all that is its own.",
        handle_delete,
        add_delete_arguments,
        (
            "org delete --org acme --dry-run",
            "org delete --org acme --confirm acme --export acme-2026-11-22",
        ),
    ),
    CommandVerb(
        "resume", "Let a halted organization go on.", _resume_organization, examples=("org resume",)
    ),
    CommandVerb(
        "add",
        "Make an organization.",
        _create_organization,
        _add_create_arguments,
        ("org add acme", "org add acme --name 'Acme Ltd'"),
    ),
)
