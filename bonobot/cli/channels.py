"""`bonobot notices add|set|remove`: the channels by which people are told."""

import argparse
from typing import Any

from bonobot.cli.group import Cli, Verb, expand
from bonobot.notices.channels import ChannelSpec, remove_channel, save_channel
from bonobot.notices.events import CHOSEN
from bonobot.notices.models import SEVERITIES, Channel

WORDS = [word for word, _ in SEVERITIES]
KEPT = ("name", "kind", "addresses", "allow_private", "events", "minimum", "enabled")


def named(cli: Cli, name: str) -> Channel:
    """Return a channel by its name; raises `NotFound`."""
    found: Channel = Channel.objects.get_or_404(cli.principal.organization_id, name=name)
    return found


def _add(cli: Cli, options: argparse.Namespace) -> None:
    kind = Channel.Kind.EMAIL if options.email else Channel.Kind.WEBHOOK
    _save(cli, {"name": options.channel, "kind": kind, **_said(options)})


def _set(cli: Cli, options: argparse.Namespace) -> None:
    channel = named(cli, options.channel)
    kept: dict[str, Any] = {name: getattr(channel, name) for name in KEPT}
    _save(cli, kept | _said(options), channel)


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    channel = named(cli, options.channel)
    said = {"removed": channel.name}
    remove_channel(cli.principal, channel)
    cli.emit(said)
    cli.say(f"{said['removed']} is told nothing any more.")


def _save(cli: Cli, spec: dict[str, Any], channel: Channel | None = None) -> None:
    row, made = save_channel(cli.principal, ChannelSpec(**spec), channel)
    names = ("name", "kind", "goes_to", "events", "minimum", "enabled")
    shown = {"id": str(row.pk)} | {name: getattr(row, name) for name in names}
    cli.emit(shown | ({"secret": made} if made else {}))
    cli.say(f"{row.name} is told at {row.goes_to}.")
    if made:
        cli.say(f"What it gets is signed with {made}; this is shown once.")


def _said(options: argparse.Namespace) -> dict[str, Any]:
    """Return what the options say, without those that say nothing."""
    said = {
        "addresses": options.email,
        "url": expand(options.url, "--url") if options.url else None,
        "secret": expand(options.secret, "--secret") if options.secret else None,
        "events": options.event,
        "minimum": options.minimum,
        "allow_private": options.allow_private,
        "enabled": options.enabled,
    }
    return {name: value for name, value in said.items() if value is not None}


def _arguments(parser: argparse.ArgumentParser, *, adds: bool) -> None:
    parser.add_argument("channel", metavar="CHANNEL", help="its name")
    to = parser.add_mutually_exclusive_group(required=adds)
    to.add_argument(
        "--email", metavar="ADDRESS", action="append", help="tell by e-mail; repeatable"
    )
    to.add_argument("--url", help="tell a webhook; `${VAR}` comes from the environment")
    parser.add_argument(
        "--secret", help="what a webhook's notices are signed with; else one is made"
    )
    parser.add_argument("--event", choices=CHOSEN, action="append", help="only this; repeatable")
    parser.add_argument("--minimum", choices=WORDS, help="the least severity")
    parser.add_argument("--allow-private", action="store_true", default=None)
    parser.add_argument("--enabled", action=argparse.BooleanOptionalAction, default=None)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser, adds=True)


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser, adds=False)


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", help="its name")


VERBS = (
    Verb(
        "add",
        "Add a channel: a webhook, or e-mail.",
        _add,
        _add_arguments,
        ("notices add Pager --url '${PAGER_URL}' --event server_down --minimum critical",),
    ),
    Verb(
        "set",
        "Change a channel; switched off, it forgets what waits for it.",
        _set,
        _set_arguments,
        ("notices set Pager --no-enabled", "notices set Pager --minimum warning"),
    ),
    Verb(
        "remove",
        "Remove a channel with the notices that it was told.",
        _remove,
        _remove_arguments,
        ("notices remove Pager",),
    ),
)
