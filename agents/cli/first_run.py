"""The command `first-run`."""

import argparse
from functools import partial
from typing import Any

from agents.first_run import (
    SLUGS,
    load_first_run_progress,
    set_first_run_closed,
    set_step_skipped,
)
from bonobot.accounts.roles import Action
from bonobot.core.cli.command_group import CommandContext, CommandVerb
from bonobot.core.cli.text_table import build_table


def _describe_progress(cli: CommandContext) -> dict[str, Any]:
    progress = load_first_run_progress(cli.principal.organization_id)
    return {
        "steps": [
            {
                "slug": step.slug,
                "title": str(step.title),
                "done": step.done,
                "skipped": step.skipped,
            }
            for step in progress.steps
        ],
        "next": progress.next.slug if progress.next else None,
        "hidden": progress.closed,
    }


def _handle_show(cli: CommandContext, options: argparse.Namespace) -> None:
    cli.principal.require(Action.MANAGE_SERVERS)
    progress = _describe_progress(cli)
    rows = [
        (
            step["slug"],
            step["title"],
            "done" if step["done"] else "skipped" if step["skipped"] else "",
        )
        for step in progress["steps"]
    ]
    cli.emit(progress, build_table("STEP", "TITLE", "STATE", rows=rows, empty=""))
    if progress["hidden"]:
        cli.print_message("Hidden from the dashboard. To show it: bonobot first-run unhide")


def _add_step_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("step", metavar="STEP", help=f"One of: {', '.join(SLUGS)}")


def _handle_skip(cli: CommandContext, options: argparse.Namespace, *, is_skipped: bool) -> None:
    set_step_skipped(cli.principal, options.step, is_skipped=is_skipped)
    cli.emit(_describe_progress(cli))
    cli.print_message(
        f"The step {options.step} {'was skipped' if is_skipped else 'is no longer skipped'}."
    )


def _handle_hide(cli: CommandContext, options: argparse.Namespace, *, hidden: bool) -> None:
    set_first_run_closed(cli.principal, is_closed=hidden)
    cli.emit(_describe_progress(cli))
    cli.print_message(
        f"The first steps are {'hidden from' if hidden else 'shown on'} the dashboard."
    )


VERBS = (
    CommandVerb(
        "show",
        "Show the first steps and their state",
        _handle_show,
        examples=("first-run show",),
    ),
    CommandVerb(
        "skip",
        "Skip a step",
        partial(_handle_skip, is_skipped=True),
        arguments=(_add_step_argument,),
        examples=("first-run skip connect",),
    ),
    CommandVerb(
        "unskip",
        "Undo skipping a step",
        partial(_handle_skip, is_skipped=False),
        arguments=(_add_step_argument,),
        examples=("first-run unskip connect",),
    ),
    CommandVerb(
        "hide",
        "Hide the first steps from the dashboard",
        partial(_handle_hide, hidden=True),
        examples=("first-run hide",),
    ),
    CommandVerb(
        "unhide",
        "Show the first steps on the dashboard",
        partial(_handle_hide, hidden=False),
        examples=("first-run unhide",),
    ),
)
