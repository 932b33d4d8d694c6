"""`bonobot agents export-session`: a session written down."""

import argparse
from pathlib import Path

from agents.sessions.exporting import MEDIA_TYPES, exported
from bonobot.cli.group import Cli
from bonobot.cli.running import find
from bonobot.lib.problems import Invalid


def declare(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("session", metavar="SESSION", help="its id")
    parser.add_argument("--as", dest="form", choices=list(MEDIA_TYPES), default="markdown")
    parser.add_argument("--output", metavar="FILE", help="default: the standard output")


def export(cli: Cli, options: argparse.Namespace) -> None:
    """Write a session down; with `--json` as JSON."""
    text = exported(find(cli, options.session), "json" if cli.as_json else options.form)
    if not options.output:
        cli.out.file.write(text)
        return
    path = Path(options.output).expanduser()
    write(path, text, "--output")
    cli.err.print(f"Written to {path}.", markup=False)


def write(path: Path, text: str, field: str) -> None:
    """Write a text file; raises `Invalid` (`unusable_file`) naming the field."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise Invalid(
            f"The file {str(path)!r} can't be written: {error.strerror}.",
            code="unusable_file",
            field=field,
            remedy="Name another file.",
        ) from None
