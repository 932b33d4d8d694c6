"""`bonobot org …`: the organization, and the switch that stops everything in it."""

import argparse
from typing import Any

from agents.halting import Reach, halt, reach_of, resume
from bonobot.cli import leaving
from bonobot.cli.group import Cli, Verb, table
from bonobot.lib.problems import Invalid
from bonobot.tenancy.members import save_organization
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import cli_principal

# Left out, which is something else than `default`.
UNSAID: Any = object()
FLAGS = ("four_eyes", "second_factor", "single_sign_on")


def _current(cli: Cli) -> Organization:
    return Organization.objects.get(pk=cli.principal.organization_id)


def _as_json(organization: Organization, reach: Reach) -> dict[str, Any]:
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
        **reach.as_dict(),
    }


def _show(cli: Cli, options: argparse.Namespace) -> None:
    organization = _current(cli)
    found = _as_json(organization, reach_of(organization))
    rows = [(name.replace("_", " "), value) for name, value in found.items() if value is not None]
    cli.emit(found, table("", "", rows=rows, empty=""))
    if organization.halted_at is not None:
        cli.say(f"It is halted. Let it go on: bonobot org resume --org {organization.slug}")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("slug", metavar="SLUG", help="short name, as `--org` takes it")
    parser.add_argument("--name", default="", help="what people read (default: the slug)")


def _add(cli: Cli, options: argparse.Namespace) -> None:
    made = Organization(slug=options.slug, name=options.name or options.slug)
    # Of no organization yet: whoever has the host makes it, and is told apart by that in its audit.
    save_organization(cli_principal(made), made, adding=True)
    cli.emit(_as_json(made, reach_of(made)))
    cli.say(f"{made.slug} is made. Invite its owner: bonobot members invite EMAIL --role owner")


def _number(text: str) -> int | None:
    """Read a whole number, or `default`: as the platform has it."""
    return None if text == "default" else int(text)


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--calls-per-minute",
        type=_number,
        metavar="N",
        default=UNSAID,
        help="of all agents and tokens together; 0: no limit, default: as the settings say",
    )
    parser.add_argument(
        "--approval-hours",
        type=_number,
        metavar="N",
        default=UNSAID,
        help="hours to answer a call that waits; default: as the settings say",
    )
    parser.add_argument(
        "--audit-days",
        type=_number,
        metavar="N",
        default=UNSAID,
        help="days that rows of the audit stay; 0: for ever, default: as the settings say",
    )
    parser.add_argument(
        "--four-eyes",
        action=argparse.BooleanOptionalAction,
        default=UNSAID,
        help="nobody approves the calls they asked for",
    )
    parser.add_argument(
        "--second-factor",
        action=argparse.BooleanOptionalAction,
        default=UNSAID,
        help="everybody needs a second factor",
    )
    parser.add_argument(
        "--single-sign-on",
        action=argparse.BooleanOptionalAction,
        default=UNSAID,
        help="everybody signs in by an identity provider; --no-… lets passwords in again",
    )


def _set(cli: Cli, options: argparse.Namespace) -> None:
    names = ("calls_per_minute", "approval_hours", "audit_days", *FLAGS)
    said = {name: value for name in names if (value := getattr(options, name)) is not UNSAID}
    if not said:
        raise Invalid(
            "Nothing is said.",
            field="org set",
            remedy="Give one of the options that `bonobot org set --help` lists.",
        )
    organization = _current(cli)
    for name, value in said.items():
        setattr(organization, name, value)
    save_organization(cli.principal, organization, adding=False)
    cli.emit(_as_json(organization, reach_of(organization)))
    cli.say(f"{organization.slug}: {', '.join(f'{name} {value}' for name, value in said.items())}")


def _halt_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--reason", default="", help="for the audit, and those whose sessions end")
    parser.add_argument("--yes", action="store_true", help="don't ask first")


def _halt(cli: Cli, options: argparse.Namespace) -> None:
    organization = _current(cli)
    reach = reach_of(organization)
    question = (
        f"Halt {organization.slug}? {reach.running} running and {reach.waiting} waiting sessions "
        f"are cancelled, {reach.agents} agents and {reach.servers} servers stand still."
    )
    if not options.yes and not cli.confirm(question):
        raise Invalid(
            f"Nothing was halted. It would stop {reach.running} running and {reach.waiting} "
            f"waiting sessions of {reach.agents} agents.",
            code="not_confirmed",
            field="--yes",
            remedy="Confirm it with --yes.",
        )
    organization = halt(cli.principal, options.reason)
    cli.emit(_as_json(organization, reach))
    cli.say(f"{organization.slug} is halted: every call and model turn is refused from now on.")
    cli.say(f"Let it go on: bonobot org resume --org {organization.slug}")


def _resume(cli: Cli, options: argparse.Namespace) -> None:
    organization = resume(cli.principal)
    cli.emit(_as_json(organization, reach_of(organization)))
    cli.say(f"{organization.slug} goes on; sessions that were cancelled stay so.")


VERBS = (
    Verb(
        "show", "Show the organization, and what a halt would stop.", _show, examples=("org show",)
    ),
    Verb(
        "set",
        "Set the organization's rate, how calls that wait are answered, how long the audit stays.",
        _set,
        _set_arguments,
        (
            "org set --calls-per-minute 600",
            "org set --audit-days 365",
            "org set --calls-per-minute default --four-eyes",
        ),
    ),
    Verb(
        "halt",
        "Stop everything: refuse every call and turn, cancel every session.",
        _halt,
        _halt_arguments,
        ("org halt", 'org halt --yes --reason "leaked credential" --org acme'),
    ),
    Verb(
        "export",
        "Write everything of the organization into a folder.",
        leaving.export,
        leaving.export_arguments,
        ("org export acme-2026-11-22 --org acme",),
    ),
    Verb(
        "delete",
        "Remove the organization with all that is its own.",
        leaving.delete,
        leaving.delete_arguments,
        (
            "org delete --org acme --dry-run",
            "org delete --org acme --confirm acme --export acme-2026-11-22",
        ),
    ),
    Verb("resume", "Let a halted organization go on.", _resume, examples=("org resume",)),
    Verb(
        "add",
        "Make an organization.",
        _add,
        _add_arguments,
        ("org add acme", "org add acme --name 'Acme Ltd'"),
    ),
)
