"""The pages of the reference, made from the code that they describe: none can be out of date."""

import os
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import django
import yaml

from docs.making.markdown import code, fenced, table

ROOT = Path(__file__).resolve().parents[2]
SECTION = re.compile(r"^# --- (?P<title>.+?) ---$")
VARIABLE = re.compile(r"^#(?P<name>[A-Z_]+)=(?P<value>.*)$")
WIDTH = "100"
SETTINGS = """Environment variables. To try Bonobot, you don't need to set any. To read a
value from a file, set `NAME_FILE` to its path. An empty value counts as not set. If a value is
invalid, Bonobot stops with a message that names the variable. `.env.example` is the same list, for
you to copy.
"""
COMMANDS = """The output of `bonobot COMMAND --help`. Every subcommand accepts `--json` and
`--org SLUG`. Exit status: 0 success, 1 denied or failed, 2 invalid usage.
"""


@cache
def pages() -> dict[str, str]:
    """Return every page by its address below `reference/`."""
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    django.setup()
    from docs.making import refusals, rest

    made = {
        "settings.md": settings(),
        "commands.md": commands(),
        "refusals.md": refusals.page(ROOT),
        "metrics.md": metrics(),
    }
    return made | {f"rest/{name}.md": text for name, text in rest.pages().items()}


def settings() -> str:
    """Return the settings: from `.env.example`, which a test holds equal to what settings read."""
    from bonobot.core import environment

    kinds = environment.list_variables()
    parts = [
        "# Settings\n",
        SETTINGS,
    ]
    for title, rows in _sections():
        parts.append(f"## {title}\n")
        parts.append(
            table(
                ("variable", "type", "default", "description"),
                ((code(name), kinds[name], code(value), about) for name, value, about in rows),
            )
        )
    return "\n".join(parts)


def _sections() -> Iterator[tuple[str, list[tuple[str, str, str]]]]:
    """Yield the sections of `.env.example`; a remark holds for all variables right below it."""
    title, about, rows = "", "", list[tuple[str, str, str]]()
    after_variable = True
    for line in (ROOT / ".env.example").read_text(encoding="utf-8").splitlines():
        if found := SECTION.match(line):
            if title:
                yield title, rows
            title, about, rows = found["title"], "", []
        elif found := VARIABLE.match(line):
            rows.append((found["name"], found["value"], about))
            after_variable = True
        elif line.startswith("# "):
            about = line[2:] if after_variable else f"{about} {line[2:]}"
            after_variable = False
    yield title, rows


def commands() -> str:
    """Return every command with its verbs, as `--help` says them."""
    from django.core.management import get_commands, load_command_class

    os.environ["COLUMNS"] = WIDTH
    parts = [
        "# Commands\n",
        COMMANDS,
    ]
    for name, app in sorted(get_commands().items()):
        if app == "bonobot":
            command = load_command_class(app, name)
            parts += [f"## bonobot {name}\n", f"{command.help}\n", *_verbs(name, command)]
    return "\n".join(parts)


def _verbs(name: str, command: object) -> Iterator[str]:
    from bonobot.core.cli.command_group import CommandGroup

    parser = command.create_parser("bonobot", name)  # type: ignore[attr-defined]
    if not isinstance(command, CommandGroup):
        yield fenced(parser.format_help())
        return
    subparsers = next(one for one in parser._actions if one.dest == "verb").choices
    for verb in command.verbs:
        yield f"### bonobot {name} {verb.name}\n"
        yield fenced(subparsers[verb.name].format_help())


def metrics() -> str:
    """Return what Prometheus reads, and the alerts made of it."""
    from bonobot.core.telemetry.metrics import registry
    from bonobot.monitoring.metrics_endpoint import list_families

    counted = [
        (
            code(f"{one.name}{'_total' if one.type == 'counter' else ''}"),
            one.type,
            one.documentation,
        )
        for one in registry.collect()
        if one.name.startswith("bonobot_")
    ]
    read = [(code(one.name), "gauge, from the scheduler", one.text) for one in list_families()]
    rules = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text(encoding="utf-8"))
    alerts = (
        (
            f"[{one['alert']}](../runbooks.md#{one['alert'].lower()})",
            one["labels"]["severity"],
            one["annotations"]["summary"],
            code(" ".join(one["expr"].split())),
            one.get("for", ""),
        )
        for group in rules["groups"]
        for one in group["rules"]
    )
    return "\n".join(
        [
            "# Metrics and alerts\n",
            "How to collect and use them: [Operate](../operate.md#metrics-and-alerts).\n",
            table(("metric", "type", "description"), sorted({*counted, *read})),
            "## Alerts\n",
            table(("alert", "severity", "description", "expression", "for"), alerts),
        ]
    )
