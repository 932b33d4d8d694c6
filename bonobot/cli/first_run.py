"""`bonobot first-run …`: how far an organization is, what it skips, and whether it is shown."""

import argparse
from functools import partial
from typing import Any

from bonobot.cli.group import Cli, Verb, table
from bonobot.first_run import SLUGS, begun, close, skip
from bonobot.tenancy.roles import Action


def _as_json(cli: Cli) -> dict[str, Any]:
    found = begun(cli.principal.organization_id)
    return {
        "steps": [
            {
                "slug": step.slug,
                "title": str(step.title),
                "done": step.done,
                "skipped": step.skipped,
            }
            for step in found.steps
        ],
        "next": found.next.slug if found.next else None,
        "hidden": found.closed,
    }


def _show(cli: Cli, options: argparse.Namespace) -> None:
    cli.principal.require(Action.MANAGE_SERVERS)
    told = _as_json(cli)
    rows = [
        (one["slug"], one["title"], "done" if one["done"] else "skipped" if one["skipped"] else "")
        for one in told["steps"]
    ]
    cli.emit(told, table("STEP", "WHAT", "STATE", rows=rows, empty=""))
    if told["hidden"]:
        cli.say("It is hidden from the dashboard: bonobot first-run unhide")


def _step(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", metavar="STEP", help=", ".join(SLUGS))


def _skip(cli: Cli, options: argparse.Namespace, *, skipped: bool) -> None:
    skip(cli.principal, options.step, skipped=skipped)
    cli.emit(_as_json(cli))
    cli.say(f"{options.step} {'is skipped' if skipped else 'is taken up again'}.")


def _hide(cli: Cli, options: argparse.Namespace, *, hidden: bool) -> None:
    close(cli.principal, closed=hidden)
    cli.emit(_as_json(cli))
    cli.say(f"The first steps are {'off' if hidden else 'on'} the dashboard.")


VERBS = (
    Verb(
        "show",
        "Show the first steps, and which of them are done.",
        _show,
        examples=("first-run show",),
    ),
    Verb(
        "skip", "Leave a step out.", partial(_skip, skipped=True), _step, ("first-run skip model",)
    ),
    Verb(
        "take-up",
        "Take a step up again.",
        partial(_skip, skipped=False),
        _step,
        ("first-run take-up model",),
    ),
    Verb(
        "hide",
        "Take the first steps off the dashboard.",
        partial(_hide, hidden=True),
        examples=("first-run hide",),
    ),
    Verb(
        "unhide",
        "Put them back.",
        partial(_hide, hidden=False),
        examples=("first-run unhide",),
    ),
)
