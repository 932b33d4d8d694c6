"""`bonobot notices …`: what people were told, and a test of each channel."""

import argparse
from typing import Any

from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.notices import outbox
from bonobot.notices.delivering import send_test
from bonobot.notices.models import Channel, Notice

LISTED = 100


def as_json(notice: Notice) -> dict[str, Any]:
    """Return a notice as programs read it."""
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


def _list(cli: Cli, options: argparse.Namespace) -> None:
    rows = Notice.objects.for_organization(cli.principal.organization_id)
    rows = rows.filter(state=options.state) if options.state else rows
    found = [as_json(row) for row in rows.select_related("channel")[:LISTED]]
    names = ("event", "subject", "channel", "state", "attempts", "error")
    shown = [(f"{n['created_at']:%m-%d %H:%M}", *(n[name] for name in names)) for n in found]
    columns = ("WHEN", "EVENT", "ABOUT", "CHANNEL", "STATE", "TRIED", "ERROR")
    empty = "Nothing was told yet. Channels: bonobot notices channels"
    cli.emit(found, table(*columns, rows=shown, empty=empty))


def _channels(cli: Cli, options: argparse.Namespace) -> None:
    rows = Channel.objects.for_organization(cli.principal.organization_id)
    names = ("name", "kind", "goes_to", "events", "minimum", "enabled")
    found = [{"id": str(row.pk)} | {name: getattr(row, name) for name in names} for row in rows]
    shown = [
        (c["name"], c["kind"], c["goes_to"], ", ".join(c["events"]) or "everything", c["enabled"])
        for c in found
    ]
    empty = "Nobody is told yet. Add a channel: bonobot notices add NAME --url URL"
    cli.emit(found, table("NAME", "KIND", "GOES TO", "EVENTS", "ON", rows=shown, empty=empty))


def _test(cli: Cli, options: argparse.Namespace) -> None:
    channel: Channel = Channel.objects.get_or_404(
        cli.principal.organization_id, name=options.channel
    )
    with cli.waiting(f"Telling {channel.name} …"):
        notice = send_test(cli.principal, channel)
    cli.emit(as_json(notice))
    if notice.state != Notice.State.SENT:
        cli.say(f"It did not arrive: {notice.error}")
        raise Failed
    cli.say(f"{channel.name}: the test notice was taken by the receiver.")


def _retry(cli: Cli, options: argparse.Namespace) -> None:
    rows = Notice.objects.select_related("channel")
    notice: Notice = rows.get_or_404(cli.principal.organization_id, pk=options.id)
    outbox.retry(cli.principal, notice)
    cli.emit(as_json(notice))
    cli.say("It is tried again within seconds.")


def _list_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--state", choices=Notice.State.values, help="only those in this state")


def _test_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("channel", metavar="CHANNEL", help="name of the channel")


def _retry_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="ID", help="id of the notice, as listed with --json")


VERBS = (
    Verb(
        "list",
        f"List the latest {LISTED} notices.",
        _list,
        _list_arguments,
        ("notices list", "notices list --state failed --json"),
    ),
    Verb("channels", "List the channels.", _channels, examples=("notices channels",)),
    Verb(
        "test",
        "Send a test notice through a channel now.",
        _test,
        _test_arguments,
        ("notices test Operations",),
    ),
    Verb(
        "retry",
        "Have a notice that waits or was given up tried again at once.",
        _retry,
        _retry_arguments,
        ("notices retry 0198c0de-…",),
    ),
)
