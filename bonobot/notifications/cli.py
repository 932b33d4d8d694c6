"""The command group `notices` for notifications and channels."""

import argparse
from typing import Any

from bonobot.core.cli.command_group import (
    CommandContext,
    CommandFailed,
    CommandVerb,
    build_table,
    expand,
)
from bonobot.notifications import delivery
from bonobot.notifications.delivery import send_test
from bonobot.notifications.events import CHOSEN
from bonobot.notifications.models import SEVERITIES, Channel, Notice
from bonobot.notifications.services import NotificationChannelSpec, remove_channel, save_channel

WORDS = [word for word, _ in SEVERITIES]
KEPT = ("name", "kind", "addresses", "allow_private", "events", "minimum", "enabled")


def get_channel(cli: CommandContext, name: str) -> Channel:
    """Return a channel by name; raises `NotFound`."""
    found: Channel = Channel.objects.get_or_404(cli.principal.organization_id, name=name)
    return found


def _add(cli: CommandContext, options: argparse.Namespace) -> None:
    kind = Channel.Kind.EMAIL if options.email else Channel.Kind.WEBHOOK
    _save(cli, {"name": options.channel, "kind": kind, **_collect_channel_options(options)})


def _set(cli: CommandContext, options: argparse.Namespace) -> None:
    channel = get_channel(cli, options.channel)
    kept: dict[str, Any] = {name: getattr(channel, name) for name in KEPT}
    _save(cli, kept | _collect_channel_options(options), channel)


def _remove(cli: CommandContext, options: argparse.Namespace) -> None:
    channel = get_channel(cli, options.channel)
    said = {"removed": channel.name}
    remove_channel(cli.principal, channel)
    cli.emit(said)
    cli.say(f"{said['removed']} is told nothing any more.")


def _save(cli: CommandContext, spec: dict[str, Any], channel: Channel | None = None) -> None:
    row, made = save_channel(cli.principal, NotificationChannelSpec(**spec), channel)
    names = ("name", "kind", "goes_to", "events", "minimum", "enabled")
    shown = {"id": str(row.pk)} | {name: getattr(row, name) for name in names}
    cli.emit(shown | ({"secret": made} if made else {}))
    cli.say(f"{row.name} is told at {row.goes_to}.")
    if made:
        cli.say(f"What it gets is signed with {made}; this is shown once.")


def _collect_channel_options(options: argparse.Namespace) -> dict[str, Any]:
    """Return the given options."""
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


def _add_channel_arguments(parser: argparse.ArgumentParser, *, adds: bool) -> None:
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
    _add_channel_arguments(parser, adds=True)


def _set_arguments(parser: argparse.ArgumentParser) -> None:
    _add_channel_arguments(parser, adds=False)


def _remove_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", help="its name")


CHANNEL_VERBS = (
    CommandVerb(
        "add",
        "Add a channel: a webhook, or e-mail.",
        _add,
        _add_arguments,
        ("notices add Pager --url '${PAGER_URL}' --event server_down --minimum critical",),
    ),
    CommandVerb(
        "set",
        "Change a channel; switched off, it forgets what waits for it.",
        _set,
        _set_arguments,
        ("notices set Pager --no-enabled", "notices set Pager --minimum warning"),
    ),
    CommandVerb(
        "remove",
        "Remove a channel with the notices that it was told.",
        _remove,
        _remove_arguments,
        ("notices remove Pager",),
    ),
)


LISTED = 100


def as_json(notice: Notice) -> dict[str, Any]:
    """Return a notification for JSON output."""
    return {
        "id": str(notice.pk),
        "channel": notice.channel.name,
        "event": notice.event,
        "severity": notice.severity,
        "subject": notice.subject_name,
        "text": notice.text,
        "state": notice.state,
        "attempts": notice.attempts,
        "error": notice.error,
        "created_at": notice.created_at,
        "sent_at": notice.sent_at,
    }


def _list(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Notice.objects.for_organization(cli.principal.organization_id)
    rows = rows.filter(state=options.state) if options.state else rows
    found = [as_json(row) for row in rows.select_related("channel")[:LISTED]]
    names = ("event", "subject", "channel", "state", "attempts", "error")
    shown = [(f"{n['created_at']:%m-%d %H:%M}", *(n[name] for name in names)) for n in found]
    columns = ("WHEN", "EVENT", "ABOUT", "CHANNEL", "STATE", "TRIED", "ERROR")
    empty = "Nothing was told yet. Channels: bonobot notices channels"
    cli.emit(found, build_table(*columns, rows=shown, empty=empty))


def _list_channels(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Channel.objects.for_organization(cli.principal.organization_id)
    names = ("name", "kind", "goes_to", "events", "minimum", "enabled")
    found = [{"id": str(row.pk)} | {name: getattr(row, name) for name in names} for row in rows]
    shown = [
        (c["name"], c["kind"], c["goes_to"], ", ".join(c["events"]) or "everything", c["enabled"])
        for c in found
    ]
    empty = "Nobody is told yet. Add a channel: bonobot notices add NAME --url URL"
    cli.emit(found, build_table("NAME", "KIND", "GOES TO", "EVENTS", "ON", rows=shown, empty=empty))


def _test(cli: CommandContext, options: argparse.Namespace) -> None:
    channel: Channel = Channel.objects.get_or_404(
        cli.principal.organization_id, name=options.channel
    )
    with cli.waiting(f"Telling {channel.name} …"):
        notice = send_test(cli.principal, channel)
    cli.emit(as_json(notice))
    if notice.state != Notice.State.SENT:
        cli.say(f"It did not arrive: {notice.error}")
        raise CommandFailed
    cli.say(f"{channel.name}: the test notice was taken by the receiver.")


def _retry(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Notice.objects.select_related("channel")
    notice: Notice = rows.get_or_404(cli.principal.organization_id, pk=options.id)
    delivery.retry(cli.principal, notice)
    cli.emit(as_json(notice))
    cli.say("It is tried again within seconds.")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=Notice.State.values, help="only those in this state")


def _test_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", help="name of the channel")


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of the notice, as listed with --json")


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {LISTED} notices.",
        _list,
        _list_arguments,
        ("notices list", "notices list --state failed --json"),
    ),
    CommandVerb("channels", "List the channels.", _list_channels, examples=("notices channels",)),
    CommandVerb(
        "test",
        "Send a test notice through a channel now.",
        _test,
        _test_arguments,
        ("notices test Operations",),
    ),
    CommandVerb(
        "retry",
        "Have a notice that waits or was given up tried again at once.",
        _retry,
        _retry_arguments,
        ("notices retry 0198c0de-…",),
    ),
)
