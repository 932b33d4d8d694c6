"""The command group `org`."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bonobot.accounts.models import Organization
from bonobot.accounts.models.organizations import RegistryAccess
from bonobot.accounts.principals import build_cli_principal
from bonobot.core.cli.command_group import Alternatives, Argument, CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table
from bonobot.core.problems import InvalidInput

if TYPE_CHECKING:
    from agents.kill_switch import KillSwitchImpact


def _get_organization(cli: CommandContext) -> Organization:
    return Organization.objects.get(pk=cli.principal.organization_id)


def handle_export(cli: CommandContext, options: argparse.Namespace) -> None:
    """Write everything of an organization into a folder."""
    from agents import organization_offboarding

    organization = _get_organization(cli)
    with cli.show_spinner("Exporting…"):
        result = organization_offboarding.export_organization(
            cli.principal, organization, options.folder
        )
    cli.emit(asdict(result) | {"folder": str(options.folder)})
    cli.print_message(
        f"Exported {result.rows} rows and {result.audit_rows} audit entries to {options.folder}."
    )
    cli.print_message("Secrets are not included. Enter them again after you import the data.")


_DELETE_ARGUMENTS = (
    Argument("--confirm SLUG", "Slug of the organization, to confirm. This can't be undone."),
    Argument("--dry-run", "Show what would be deleted without deleting it"),
    Alternatives(
        Argument("--export FOLDER", "Export all data to this folder first", type=Path),
        Argument("--without-export", "Delete without an export, including the audit log"),
    ),
)


def handle_delete(cli: CommandContext, options: argparse.Namespace) -> None:
    """Remove an organization with all that is its own."""
    from agents import organization_offboarding

    organization = _get_organization(cli)
    if options.dry_run:
        result = organization_offboarding.count_organization_rows(organization)
        rows = [(name.replace("_", " "), value) for name, value in asdict(result).items()]
        cli.emit(asdict(result), build_table("", "", rows=rows, empty=""))
        return
    if options.confirm != organization.slug:
        raise InvalidInput(
            "Nothing was deleted because the deletion was not confirmed.",
            code="not_confirmed",
            field="--confirm",
            remedy=f"Add --confirm {organization.slug}.",
        )
    if options.export is None and not options.without_export:
        raise InvalidInput(
            "Nothing was deleted because no export option was specified.",
            code="not_confirmed",
            field="--export",
            remedy="Add --export FOLDER, or --without-export to delete the audit log as well.",
        )
    with cli.show_spinner("Deleting…"):
        result = organization_offboarding.delete_organization(
            cli.principal, organization, options.export
        )
    cli.emit(asdict(result) | {"folder": str(options.export or "")})
    cli.print_message(
        f"{result.organization} was deleted with {result.rows} rows. User accounts are kept."
    )


# An option that isn't given, as opposed to `default`.
UNSET: Any = object()
FLAGS = ("four_eyes", "second_factor", "single_sign_on")


def _serialize_organization(
    organization: Organization, impact: "KillSwitchImpact"
) -> dict[str, Any]:
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
        "registry": organization.registry,
        "registry_url": organization.registry_url,
        **impact.as_dict(),
    }


def _show_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.kill_switch import load_impact

    organization = _get_organization(cli)
    serialized = _serialize_organization(organization, load_impact(organization))
    rows = [
        (name.replace("_", " "), value) for name, value in serialized.items() if value is not None
    ]
    cli.emit(serialized, build_table("", "", rows=rows, empty=""))
    if organization.halted_at is not None:
        cli.print_message(
            "The kill switch is enabled. "
            f"To disable it: bonobot org resume --org {organization.slug}"
        )


_CREATE_ARGUMENTS = (
    Argument("SLUG", "Short name, used with `--org`"),
    Argument("--name NAME", "Display name (default: the slug)", default=""),
)


def _create_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.kill_switch import load_impact
    from bonobot.accounts.organizations import save_organization

    organization = Organization(slug=options.slug, name=options.name or options.slug)
    # The principal belongs to no organization yet; its audit shows a CLI principal.
    save_organization(build_cli_principal(organization), organization, adding=True)
    cli.emit(_serialize_organization(organization, load_impact(organization)))
    cli.print_message(f"{organization.slug} was created. Invite its owner:")
    # With the option, because the new organization isn't the current one of any user.
    cli.print_message(f"bonobot members invite EMAIL --role owner --org {organization.slug}")


def _parse_number_or_default(text: str) -> int | None:
    """Parse a whole number; `default` (the platform's setting) becomes None."""
    return None if text == "default" else int(text)


_UPDATE_ARGUMENTS = (
    Argument(
        "--calls-per-minute N",
        "Rate limit for all agents and tokens combined. 0: no limit. default: the settings value",
        type=_parse_number_or_default,
        default=UNSET,
    ),
    Argument(
        "--approval-hours N",
        "Hours until a pending approval expires. default: the settings value",
        type=_parse_number_or_default,
        default=UNSET,
    ),
    Argument(
        "--audit-days N",
        "Days to keep audit entries. 0: no limit. default: the settings value",
        type=_parse_number_or_default,
        default=UNSET,
    ),
    Argument(
        "--[no-]four-eyes", "Prevent people from approving calls they requested", default=UNSET
    ),
    Argument("--[no-]second-factor", "Require a second factor", default=UNSET),
    Argument(
        "--[no-]single-sign-on",
        "Require sign-in with an identity provider, or allow passwords with --no-…",
        default=UNSET,
    ),
    Argument(
        "--registry",
        "Who can read the MCP registry of approved servers and agents",
        choices=RegistryAccess.values,
        default=UNSET,
    ),
)


def _update_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.kill_switch import load_impact
    from bonobot.accounts.organizations import save_organization

    names = ("calls_per_minute", "approval_hours", "audit_days", "registry", *FLAGS)
    changes = {name: value for name in names if (value := getattr(options, name)) is not UNSET}
    if not changes:
        raise InvalidInput(
            "No option was specified.",
            field="org set",
            remedy="Use at least one option. List them with: bonobot org set --help",
        )
    organization = _get_organization(cli)
    for name, value in changes.items():
        setattr(organization, name, value)
    save_organization(cli.principal, organization, adding=False)
    cli.emit(_serialize_organization(organization, load_impact(organization)))
    cli.print_message(
        f"{organization.slug}: {', '.join(f'{name} {value}' for name, value in changes.items())}"
    )


_HALT_ARGUMENTS = (
    Argument(
        "--reason REASON",
        "Reason, shown in the audit log and to people whose sessions are canceled",
        default="",
    ),
    Argument("--yes", "Don't ask for confirmation"),
)


def _halt_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.kill_switch import halt_organization, load_impact

    organization = _get_organization(cli)
    impact = load_impact(organization)
    question = (
        f"Enable the kill switch of {organization.slug}? {impact.running_sessions} running and "
        f"{impact.waiting_sessions} waiting sessions will be canceled. {impact.agents} agents and "
        f"{impact.servers} servers will be stopped."
    )
    if not options.yes and not cli.confirm(question):
        raise InvalidInput(
            f"The kill switch was not enabled. It would cancel {impact.running_sessions} "
            f"running and {impact.waiting_sessions} waiting sessions and stop "
            f"{impact.agents} agents.",
            code="not_confirmed",
            field="--yes",
            remedy="Add --yes to confirm.",
        )
    organization = halt_organization(cli.principal, options.reason)
    cli.emit(_serialize_organization(organization, impact))
    cli.print_message(
        f"The kill switch of {organization.slug} is enabled. All calls and model turns are denied."
    )
    cli.print_message(f"To disable it: bonobot org resume --org {organization.slug}")


def _resume_organization(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.kill_switch import load_impact, resume_organization

    organization = resume_organization(cli.principal)
    cli.emit(_serialize_organization(organization, load_impact(organization)))
    cli.print_message(
        f"The kill switch of {organization.slug} is disabled. Canceled sessions stay canceled."
    )


VERBS = (
    CommandVerb(
        "show",
        "Show the organization and what the kill switch would stop",
        _show_organization,
        examples=("org show",),
    ),
    CommandVerb(
        "set",
        "Update the organization's limits, approval and sign-in rules, retention, and registry",
        _update_organization,
        arguments=_UPDATE_ARGUMENTS,
        examples=(
            "org set --calls-per-minute 600",
            "org set --audit-days 365",
            "org set --calls-per-minute default --four-eyes",
            "org set --registry token",
        ),
    ),
    CommandVerb(
        "halt",
        "Enable the kill switch: deny all calls and model turns, and cancel all sessions",
        _halt_organization,
        arguments=_HALT_ARGUMENTS,
        examples=("org halt", 'org halt --yes --reason "leaked credential" --org acme'),
    ),
    CommandVerb(
        "export",
        "Export all data of the organization to a folder",
        handle_export,
        arguments=(Argument("FOLDER", "New or empty folder", type=Path),),
        examples=("org export acme-2026-11-22 --org acme",),
    ),
    CommandVerb(
        "delete",
        "Delete the organization and all its data",
        handle_delete,
        arguments=_DELETE_ARGUMENTS,
        examples=(
            "org delete --org acme --dry-run",
            "org delete --org acme --confirm acme --export acme-2026-11-22",
        ),
    ),
    CommandVerb(
        "resume", "Disable the kill switch", _resume_organization, examples=("org resume",)
    ),
    CommandVerb(
        "add",
        "Create an organization",
        _create_organization,
        arguments=_CREATE_ARGUMENTS,
        examples=("org add acme", "org add acme --name 'Acme Ltd'"),
    ),
)
