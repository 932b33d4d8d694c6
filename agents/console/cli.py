"""The command `first-run`."""

import argparse
from functools import partial
from typing import Any

from agents.console.onboarding import SLUGS, close, load_onboarding_progress, skip
from bonobot.accounts.roles import Action
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table


def _as_json(cli: CommandContext) -> dict[str, Any]:
    found = load_onboarding_progress(cli.principal.organization_id)
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


def _show(cli: CommandContext, options: argparse.Namespace) -> None:
    cli.principal.require(Action.MANAGE_SERVERS)
    told = _as_json(cli)
    rows = [
        (one["slug"], one["title"], "done" if one["done"] else "skipped" if one["skipped"] else "")
        for one in told["steps"]
    ]
    cli.emit(told, build_table("STEP", "WHAT", "STATE", rows=rows, empty=""))
    if told["hidden"]:
        cli.say("It is hidden from the dashboard: bonobot first-run unhide")


def _add_step_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", metavar="STEP", help=", ".join(SLUGS))


def _skip(cli: CommandContext, options: argparse.Namespace, *, skipped: bool) -> None:
    skip(cli.principal, options.step, skipped=skipped)
    cli.emit(_as_json(cli))
    cli.say(f"{options.step} {'is skipped' if skipped else 'is taken up again'}.")


def _hide(cli: CommandContext, options: argparse.Namespace, *, hidden: bool) -> None:
    close(cli.principal, closed=hidden)
    cli.emit(_as_json(cli))
    cli.say(f"The first steps are {'off' if hidden else 'on'} the dashboard.")


VERBS = (
    CommandVerb(
        "show",
        "Show the first steps, and which of them are done.",
        _show,
        examples=("first-run show",),
    ),
    CommandVerb(
        "skip",
        "Leave a step out.",
        partial(_skip, skipped=True),
        _add_step_argument,
        ("first-run skip model",),
    ),
    CommandVerb(
        "take-up",
        "Take a step up again.",
        partial(_skip, skipped=False),
        _add_step_argument,
        ("first-run take-up model",),
    ),
    CommandVerb(
        "hide",
        "Take the first steps off the dashboard.",
        partial(_hide, hidden=True),
        examples=("first-run hide",),
    ),
    CommandVerb(
        "unhide",
        "Put them back.",
        partial(_hide, hidden=False),
        examples=("first-run unhide",),
    ),
)
