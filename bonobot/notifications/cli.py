"""The command group `notifications`: notifications and their channels."""

import argparse
from dataclasses import replace
from typing import Any

from bonobot.core.cli.command_group import (
    AddArguments,
    Alternatives,
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    expand_variables,
)
from bonobot.core.cli.text_table import build_table
from bonobot.notifications import delivery
from bonobot.notifications.channels import (
    NotificationChannelSpec,
    build_spec,
    delete_channel,
    save_channel,
)
from bonobot.notifications.delivery import send_test_notification
from bonobot.notifications.events import SELECTABLE_EVENTS
from bonobot.notifications.models import SEVERITIES, Notification, NotificationChannel

SEVERITY_WORDS = [word for word, _ in SEVERITIES]


def _create_channel(cli: CommandContext, options: argparse.Namespace) -> None:
    kind = NotificationChannel.Kind.EMAIL if options.email else NotificationChannel.Kind.WEBHOOK
    spec = NotificationChannelSpec(options.channel, kind, **_collect_channel_options(options))
    _save_channel(cli, spec)


def _update_channel(cli: CommandContext, options: argparse.Namespace) -> None:
    channel = cli.get_row(NotificationChannel, name=options.channel)
    spec = replace(build_spec(channel), **_collect_channel_options(options))
    _save_channel(cli, spec, channel)


def _delete_channel(cli: CommandContext, options: argparse.Namespace) -> None:
    channel = cli.get_row(NotificationChannel, name=options.channel)
    result = {"removed": channel.name}
    delete_channel(cli.principal, channel)
    cli.emit(result)
    cli.print_message(f"{result['removed']} was deleted.")


def _save_channel(
    cli: CommandContext, spec: NotificationChannelSpec, channel: NotificationChannel | None = None
) -> None:
    row, generated_secret = save_channel(cli.principal, spec, channel)
    names = ("name", "kind", "destination", "events", "minimum_severity", "enabled")
    values = {"id": str(row.pk)} | {name: getattr(row, name) for name in names}
    cli.emit(values | ({"secret": generated_secret} if generated_secret else {}))
    cli.print_message(f"{row.name} was saved. Notifications are sent to {row.destination}.")
    if generated_secret:
        cli.print_message(f"Signing secret, shown only once: {generated_secret}")


def _collect_channel_options(options: argparse.Namespace) -> dict[str, Any]:
    values = {
        "addresses": options.email,
        "url": expand_variables(options.url, "--url") if options.url else None,
        "secret": expand_variables(options.secret, "--secret") if options.secret else None,
        "events": options.event,
        "minimum_severity": options.minimum_severity,
        "allow_private": options.allow_private,
        "enabled": options.enabled,
    }
    return {name: value for name, value in values.items() if value is not None}


def _build_channel_arguments(*, is_new: bool) -> tuple[AddArguments, ...]:
    return (
        Argument("CHANNEL", "Name of the channel"),
        Alternatives(
            Argument("--email ADDRESS", "Email address to notify. Repeatable", action="append"),
            Argument(
                "--url URL", "URL of a webhook. `${VAR}` is replaced by the environment variable"
            ),
            required=is_new,
        ),
        Argument(
            "--secret SECRET",
            "Secret that webhook requests are signed with (default: generated)",
        ),
        Argument(
            "--event",
            "Only notify of this event. Repeatable",
            choices=SELECTABLE_EVENTS,
            action="append",
        ),
        Argument("--minimum-severity", "Minimum severity", choices=SEVERITY_WORDS),
        Argument("--allow-private", "Allow a private address", default=None),
        Argument("--[no-]enabled", "Whether the channel is enabled"),
    )


CHANNEL_VERBS = (
    CommandVerb(
        "add",
        "Add a notification channel for a webhook or email",
        _create_channel,
        arguments=_build_channel_arguments(is_new=True),
        examples=("notifications add Pager --url '${PAGER_URL}' --minimum-severity critical",),
    ),
    CommandVerb(
        "set",
        "Update a channel. Disabling it discards its unsent notifications.",
        _update_channel,
        arguments=_build_channel_arguments(is_new=False),
        examples=(
            "notifications set Pager --no-enabled",
            "notifications set Pager --minimum-severity warning",
        ),
    ),
    CommandVerb(
        "remove",
        "Delete a channel and its notifications",
        _delete_channel,
        arguments=(Argument("CHANNEL", "Name of the channel"),),
        examples=("notifications remove Pager",),
        confirmation="Delete the channel {channel} and its notifications?",
    ),
)


MAX_LISTED = 100


def serialize_notification(notification: Notification) -> dict[str, Any]:
    return {
        "id": str(notification.pk),
        "channel": notification.channel.name,
        "event": notification.event,
        "severity": notification.severity,
        "subject": notification.subject_name,
        "text": notification.text,
        "state": notification.state,
        "attempts": notification.attempts,
        "error": notification.error,
        "created_at": notification.created_at,
        "sent_at": notification.sent_at,
    }


def _list_notifications(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Notification.objects.for_organization(cli.principal.organization_id)
    rows = rows.filter(state=options.state) if options.state else rows
    notifications = [
        serialize_notification(row) for row in rows.select_related("channel")[:MAX_LISTED]
    ]
    names = ("event", "subject", "channel", "state", "attempts", "error")
    cells = [
        (f"{n['created_at']:%m-%d %H:%M}", *(n[name] for name in names)) for n in notifications
    ]
    columns = ("WHEN", "EVENT", "SUBJECT", "CHANNEL", "STATE", "ATTEMPTS", "ERROR")
    empty = "No notifications yet. List the channels: bonobot notifications channels"
    cli.emit(notifications, build_table(*columns, rows=cells, empty=empty))


def _list_channels(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = NotificationChannel.objects.for_organization(cli.principal.organization_id)
    names = ("name", "kind", "destination", "events", "minimum_severity", "enabled")
    channels = [{"id": str(row.pk)} | {name: getattr(row, name) for name in names} for row in rows]
    cells = [
        (
            c["name"],
            c["kind"],
            c["destination"],
            ", ".join(c["events"]) or "all",
            "yes" if c["enabled"] else "no",
        )
        for c in channels
    ]
    empty = "No notification channels. Add one: bonobot notifications add NAME --url URL"
    cli.emit(
        channels,
        build_table("NAME", "KIND", "DESTINATION", "EVENTS", "ENABLED", rows=cells, empty=empty),
    )


def _test_channel(cli: CommandContext, options: argparse.Namespace) -> None:
    channel = cli.get_row(NotificationChannel, name=options.channel)
    with cli.show_spinner(f"Sending a test notification to {channel.name}…"):
        notification = send_test_notification(cli.principal, channel)
    cli.emit(serialize_notification(notification))
    if notification.state != Notification.State.SENT:
        cli.print_message(f"The test notification couldn't be delivered: {notification.error}")
        raise CommandFailed
    cli.print_message(f"The test notification was sent to {channel.name}.")


def _retry_notification(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Notification.objects.select_related("channel")
    notification = cli.get_row(Notification, rows, pk=options.id)
    delivery.retry_notification(cli.principal, notification)
    cli.emit(serialize_notification(notification))
    cli.print_message("Retrying within seconds.")


VERBS = (
    CommandVerb(
        "list",
        f"List the latest {MAX_LISTED} notifications",
        _list_notifications,
        arguments=(
            Argument(
                "--state", "Only notifications in this state", choices=Notification.State.values
            ),
        ),
        examples=("notifications list", "notifications list --state failed --json"),
    ),
    CommandVerb(
        "channels",
        "List notification channels",
        _list_channels,
        examples=("notifications channels",),
    ),
    CommandVerb(
        "test",
        "Send a test notification",
        _test_channel,
        arguments=(Argument("CHANNEL", "Name of the channel"),),
        examples=("notifications test Operations",),
    ),
    CommandVerb(
        "retry",
        "Retry a pending or failed notification now",
        _retry_notification,
        arguments=(
            Argument("ID", "ID of the notification, as shown by `notifications list --json`"),
        ),
        examples=("notifications retry 0198c0de-…",),
    ),
)
