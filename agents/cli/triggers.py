"""The trigger commands of `workflows`: schedules and webhooks."""

import argparse
from typing import Any

from agents.cli.skills import add_enabled_arguments
from agents.models import Trigger
from agents.workflows.queries import build_webhook_url, list_triggers, serialize_trigger
from agents.workflows.services import get_workflow as workflow_named
from agents.workflows.triggers import (
    TriggerSpec,
    delete_trigger,
    get_trigger,
    replace_secret,
    save_trigger,
)
from bonobot.core.cli.command_group import CommandContext, CommandVerb, build_table, read_inputs


def _list_triggers(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = list_triggers(workflow_named(cli.principal, options.name))
    serialized = [serialize_trigger(row) for row in rows]
    table_rows = [
        (
            trigger["name"] if trigger["enabled"] else f"{trigger['name']} (off)",
            trigger["url"] or _format_schedule(trigger),
            trigger["next_at"],
            trigger["last_at"],
            trigger["last_code"] or trigger["last_status"],
        )
        for trigger in serialized
    ]
    empty = f"Nothing starts it by itself. Add: bonobot workflows add-trigger {options.name} NAME"
    columns = ("NAME", "WHEN", "NEXT", "LAST", "WHAT CAME OF IT")
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _create_trigger(cli: CommandContext, options: argparse.Namespace) -> None:
    workflow = workflow_named(cli.principal, options.name)
    kind = Trigger.Kind.WEBHOOK if options.webhook else Trigger.Kind.SCHEDULE
    trigger, secret = save_trigger(cli.principal, workflow, _build_spec(options, kind))
    _show_trigger(cli, trigger, secret)


def _update_trigger(cli: CommandContext, options: argparse.Namespace) -> None:
    trigger = _get_trigger(cli, options)
    updated, _ = save_trigger(cli.principal, trigger.workflow, _build_spec(options), trigger)
    _show_trigger(cli, updated)


def _replace_secret(cli: CommandContext, options: argparse.Namespace) -> None:
    trigger = _get_trigger(cli, options)
    _show_trigger(cli, trigger, replace_secret(cli.principal, trigger))


def _delete_trigger(cli: CommandContext, options: argparse.Namespace) -> None:
    trigger = _get_trigger(cli, options)
    serialized = serialize_trigger(list_triggers(trigger.workflow).get(pk=trigger.pk))
    delete_trigger(cli.principal, trigger)
    cli.emit(serialized)
    cli.print_message(f"{trigger.name} is gone; what it started stays.")


def _show_trigger(cli: CommandContext, trigger: Trigger, secret: str = "") -> None:
    serialized = serialize_trigger(list_triggers(trigger.workflow).get(pk=trigger.pk))
    cli.emit(serialized | ({"hook_secret": secret} if secret else {}))
    if trigger.kind == Trigger.Kind.SCHEDULE:
        cli.print_message(f"{trigger.name} is due at {trigger.next_at:%Y-%m-%d %H:%M} UTC.")
        return
    cli.print_message(build_webhook_url(trigger))
    if secret:
        cli.print_message(secret)
        if not cli.as_json:
            cli.err.print("Keep the secret: it is not shown again.", style="dim")


def _get_trigger(cli: CommandContext, options: argparse.Namespace) -> Trigger:
    return get_trigger(workflow_named(cli.principal, options.name), options.trigger)


def _format_schedule(trigger: dict[str, Any]) -> str:
    if trigger["cron"]:
        return f"{trigger['cron']} ({trigger['time_zone']})"
    return f"every {trigger['every_s']} s"


def _build_spec(options: argparse.Namespace, kind: str | None = None) -> TriggerSpec:
    return TriggerSpec(
        name=options.trigger,
        kind=kind,
        enabled=options.enabled,
        inputs=None if options.inputs is None else read_inputs(options.inputs, "--inputs"),
        every_s=options.every,
        cron=options.cron,
        time_zone=options.time_zone,
        per_minute=options.per_minute,
    )


def _add_workflow_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="WORKFLOW")


def _add_name_arguments(parser: argparse.ArgumentParser) -> None:
    _add_workflow_argument(parser)
    parser.add_argument("trigger", metavar="NAME", help="of the trigger")


def _add_trigger_arguments(parser: argparse.ArgumentParser) -> None:
    _add_name_arguments(parser)
    parser.add_argument("--inputs", help="JSON, of each run; of a webhook with ${/body/…}; - reads")
    schedule = parser.add_mutually_exclusive_group()
    schedule.add_argument("--every", type=int, metavar="SECONDS")
    schedule.add_argument("--cron", metavar='"M H D M W"', help="when, as cron has it")
    parser.add_argument("--time-zone", metavar="NAME", help="of the cron expression (UTC)")
    parser.add_argument("--per-minute", type=int, metavar="N", help="runs that a webhook may start")
    add_enabled_arguments(parser)


def _add_create_arguments(parser: argparse.ArgumentParser) -> None:
    _add_trigger_arguments(parser)
    parser.add_argument("--webhook", action="store_true", help="a POST with its secret starts it")


VERBS = (
    CommandVerb(
        "triggers",
        "List what starts a workflow by itself.",
        _list_triggers,
        _add_workflow_argument,
        ("workflows triggers triage",),
    ),
    CommandVerb(
        "add-trigger",
        "Start a workflow by a schedule, or by a webhook, whose secret is printed once.",
        _create_trigger,
        _add_create_arguments,
        (
            'workflows add-trigger report nightly --cron "0 3 * * *" --time-zone Europe/Berlin',
            "workflows add-trigger triage alerts --webhook"
            """ --inputs '{"title": "${/body/alerts/0/labels/alertname}"}'""",
        ),
    ),
    CommandVerb(
        "set-trigger",
        "Change a trigger, or switch it on or off.",
        _update_trigger,
        _add_trigger_arguments,
        ("workflows set-trigger report nightly --every 3600", "workflows set-trigger a b --off"),
    ),
    CommandVerb(
        "replace-secret",
        "Give a webhook another secret and print it once.",
        _replace_secret,
        _add_name_arguments,
        ("workflows replace-secret triage alerts",),
    ),
    CommandVerb(
        "remove-trigger",
        "Remove a trigger; what it started stays.",
        _delete_trigger,
        _add_name_arguments,
        ("workflows remove-trigger triage alerts",),
    ),
)
