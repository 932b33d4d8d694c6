"""`--watch`: the same list again and again, until Ctrl-C (FEATURES D9)."""

import argparse
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

from rich.live import Live

from bonobot.cli.group import Cli

SHORTEST_INTERVAL_S = 0.5

Look = Callable[[], list[dict[str, Any]]]
Draw = Callable[[list[dict[str, Any]]], Any]


def declare_watch(parser: argparse.ArgumentParser) -> None:
    """Declare the options."""
    parser.add_argument("--watch", action="store_true", help="show it anew until Ctrl-C")
    parser.add_argument("--interval", type=float, default=2.0, metavar="SECONDS", help="of --watch")


def show(cli: Cli, options: argparse.Namespace, look: Look, draw: Draw) -> None:
    """Show what `look` finds, once or until Ctrl-C."""
    if not options.watch:
        found = look()
        cli.emit(found, draw(found))
        return
    try:
        _watch(cli, _looks(look, max(options.interval, SHORTEST_INTERVAL_S)), draw)
    except KeyboardInterrupt:
        return


def _watch(cli: Cli, looks: Iterator[list[dict[str, Any]]], draw: Draw) -> None:
    """Show each look; for programs as one line of JSON, in a file or pipe one below the other."""
    if cli.as_json or not cli.out.is_terminal:
        for found in looks:
            if cli.as_json:
                cli.out.file.write(json.dumps(found, default=str, ensure_ascii=False) + "\n")
            else:
                cli.out.print(draw(found))
            cli.out.file.flush()
        return
    with Live(console=cli.out, auto_refresh=False) as live:
        for found in looks:
            live.update(draw(found), refresh=True)


def _looks(look: Look, interval_s: float) -> Iterator[list[dict[str, Any]]]:
    while True:
        yield look()
        pause(interval_s)


def pause(seconds: float) -> None:
    """Wait; Ctrl-C ends it."""
    threading.Event().wait(seconds)
