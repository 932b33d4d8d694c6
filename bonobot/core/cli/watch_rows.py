"""Rows that a verb shows once, or again and again with `--watch`."""

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from bonobot.core.cli.command_group import Argument, CommandContext

FetchRows = Callable[[], list[dict[str, Any]]]
RenderRows = Callable[[list[dict[str, Any]]], Any]

MIN_INTERVAL_S = 0.5


WATCH_ARGUMENTS = (
    Argument("--watch", "Update the output until you press Ctrl-C"),
    Argument(
        "--interval SECONDS",
        "Interval of --watch, in seconds (default: 2)",
        type=float,
        default=2.0,
    ),
)


def show_rows(
    cli: CommandContext, options: argparse.Namespace, fetch: FetchRows, render: RenderRows
) -> None:
    """Show the rows of `fetch` once, or with `--watch` until Ctrl-C."""
    if not options.watch:
        rows = fetch()
        cli.emit(rows, render(rows))
        return
    try:
        _watch_rows(cli, _poll_rows(fetch, max(options.interval, MIN_INTERVAL_S)), render)
    except KeyboardInterrupt:
        return


def _watch_rows(
    cli: CommandContext, batches: Iterator[list[dict[str, Any]]], render: RenderRows
) -> None:
    """Show each batch of rows: as a line of JSON, appended to a file or pipe, or updated live."""
    if cli.as_json or not cli.out.is_terminal:
        for rows in batches:
            if cli.as_json:
                cli.out.file.write(json.dumps(rows, default=str, ensure_ascii=False) + "\n")
            else:
                cli.print_result(render(rows))
            cli.out.file.flush()
        return
    from rich.live import Live

    with Live(console=cli.out, auto_refresh=False) as live:
        for rows in batches:
            live.update(render(rows), refresh=True)


def _poll_rows(fetch: FetchRows, interval_s: float) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield fetch()
        pause(interval_s)


def pause(seconds: float) -> None:
    """Sleep; Ctrl-C interrupts it."""
    threading.Event().wait(seconds)
