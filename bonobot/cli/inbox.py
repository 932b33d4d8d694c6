"""What `bonobot questions` and `bonobot approvals` share: a list by state, and one by its id."""

import argparse
from collections.abc import Callable, Mapping
from typing import Any

from bonobot.cli import watching
from bonobot.cli.group import Cli

LISTED = 100

Shown = dict[str, Any]


def find(cli: Cli, model: Any, pk: str) -> Any:
    """Return the question with this id; raises `NotFound`."""
    rows = model.objects.select_related("agent")
    return rows.get_or_404(cli.principal.organization_id, pk=pk)


def declare_list(parser: argparse.ArgumentParser, model: Any) -> None:
    """Declare which questions are listed, and `--watch`."""
    parser.add_argument("--state", default="waiting", choices=[*model.State.values, "all"])
    watching.declare_watch(parser)


def declare_id(parser: argparse.ArgumentParser) -> None:
    """Declare which question is meant."""
    parser.add_argument("id", metavar="ID", help="id of the question, as listed")


def show_list(
    cli: Cli,
    options: argparse.Namespace,
    model: Any,
    as_json: Callable[[Any], Shown],
    drawn: Callable[[list[Shown]], Any],
) -> None:
    """Show the latest questions in the state that is asked for."""

    def look() -> list[Shown]:
        rows = model.objects.for_organization(cli.principal.organization_id)
        if options.state != "all":
            rows = rows.filter(state=options.state)
        return [as_json(row) for row in rows.select_related("agent")[:LISTED]]

    watching.show(cli, options, look, drawn)


def line(one: Mapping[str, Any], *names: str) -> list[Any]:
    """Return a question's cells of a list; the last is when it expires."""
    return [*(one[name] for name in names), f"{one['expires_at']:%m-%d %H:%M}"]
