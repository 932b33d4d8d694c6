"""The trigger commands of `workflows`: schedules and webhooks."""

import argparse
from typing import Any

from agents.cli.skills import ENABLED_ARGUMENTS
from agents.models import Trigger
from agents.workflows.services import get_workflow as workflow_named
from agents.workflows.triggers import (
    TriggerSpec,
    build_webhook_url,
    delete_trigger,
    get_trigger,
    list_triggers,
    replace_secret,
    save_trigger,
    serialize_trigger,
)
from bonobot.core.cli.command_group import (
    Alternatives,
    Argument,
    CommandContext,
    CommandVerb,
    read_inputs,
)
from bonobot.core.cli.text_table import build_table


def _list_triggers(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = list_triggers(workflow_named(cli.principal, options.name))
    serialized = [serialize_trigger(row) for row in rows]
    table_rows = [
        (
            trigger["name"] if trigger["enabled"] else f"{trigger['name']} (disabled)",
            trigger["url"] or _format_schedule(trigger),
            trigger["next_at"],
            trigger["last_at"],
            trigger["last_code"] or trigger["last_status"],
        )
        for trigger in serialized
    ]
    empty = f"No triggers. Create one: bonobot workflows add-trigger {options.name} NAME"
    columns = ("NAME", "SCHEDULE OR URL", "NEXT RUN", "LAST RUN", "RESULT")
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
    cli.print_message("The trigger was deleted. Runs it started are kept.")


def _show_trigger(cli: CommandContext, trigger: Trigger, secret: str = "") -> None:
    serialized = serialize_trigger(list_triggers(trigger.workflow).get(pk=trigger.pk))
    cli.emit(serialized | ({"hook_secret": secret} if secret else {}))
    if trigger.kind == Trigger.Kind.SCHEDULE:
        cli.print_message(f"{trigger.name}: next run at {trigger.next_at:%Y-%m-%d %H:%M} UTC")
        return
    cli.print_message(build_webhook_url(trigger))
    if secret:
        cli.print_message(secret)
        if not cli.as_json:
            cli.err.print("Copy the secret now. It won't be shown again.", style="dim")


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


_WORKFLOW_ARGUMENT = (Argument("WORKFLOW", "Name of the workflow", dest="name"),)


_NAME_ARGUMENTS = (
    *_WORKFLOW_ARGUMENT,
    Argument("NAME", "Name of the trigger", dest="trigger"),
)


_TRIGGER_ARGUMENTS = (
    *_NAME_ARGUMENTS,
    Argument(
        "--inputs INPUTS",
        "Inputs of each run, as JSON. For a webhook, ${/body/…} refers to a value in the "
        "request body. -: standard input",
    ),
    Alternatives(
        Argument("--every SECONDS", "Interval of a schedule, in seconds", type=int),
        Argument('--cron "M H D M W"', "Cron expression of a schedule"),
    ),
    Argument("--time-zone NAME", "Time zone of the cron expression (default: UTC)"),
    Argument("--per-minute N", "Maximum webhook runs per minute", type=int),
    *ENABLED_ARGUMENTS,
)


_CREATE_ARGUMENTS = (
    *_TRIGGER_ARGUMENTS,
    Argument("--webhook", "Create a webhook, called with POST and its secret"),
)


VERBS = (
    CommandVerb(
        "triggers",
        "List the triggers of a workflow",
        _list_triggers,
        arguments=_WORKFLOW_ARGUMENT,
        examples=("workflows triggers triage",),
    ),
    CommandVerb(
        "add-trigger",
        "Create a schedule or webhook for a workflow. A webhook's secret is shown once.",
        _create_trigger,
        arguments=_CREATE_ARGUMENTS,
        examples=(
            'workflows add-trigger report nightly --cron "0 3 * * *" --time-zone Europe/Berlin',
            "workflows add-trigger triage alerts --webhook"
            """ --inputs '{"title": "${/body/alerts/0/labels/alertname}"}'""",
        ),
    ),
    CommandVerb(
        "set-trigger",
        "Update, enable, or disable a trigger",
        _update_trigger,
        arguments=_TRIGGER_ARGUMENTS,
        examples=(
            "workflows set-trigger report nightly --every 3600",
            "workflows set-trigger triage alerts --no-enabled",
        ),
    ),
    CommandVerb(
        "replace-secret",
        "Replace the secret of a webhook. The new secret is shown once.",
        _replace_secret,
        arguments=_NAME_ARGUMENTS,
        examples=("workflows replace-secret triage alerts",),
    ),
    CommandVerb(
        "remove-trigger",
        "Delete a trigger. Runs it started are kept.",
        _delete_trigger,
        arguments=_NAME_ARGUMENTS,
        examples=("workflows remove-trigger triage alerts",),
        confirmation="Delete the trigger {trigger}?",
    ),
)
