"""`bonobot workflows …trigger…`: what starts a workflow by itself."""

import argparse
from typing import Any

from agents.models import Trigger
from agents.workflows.keeping import named as workflow_named
from agents.workflows.telling import hook_url, trigger_json, triggers_of
from agents.workflows.triggers import (
    TriggerSpec,
    named,
    remove_trigger,
    replace_secret,
    save_trigger,
)
from bonobot.cli.group import Cli, Verb, table
from bonobot.cli.inputs import read_inputs
from bonobot.cli.written import declare_switch


def _list(cli: Cli, options: argparse.Namespace) -> None:
    rows = triggers_of(workflow_named(cli.principal, options.name))
    found = [trigger_json(row) for row in rows]
    shown = [
        (
            one["name"] if one["enabled"] else f"{one['name']} (off)",
            one["url"] or _time(one),
            one["next_at"],
            one["last_at"],
            one["last_code"] or one["last_status"],
        )
        for one in found
    ]
    empty = f"Nothing starts it by itself. Add: bonobot workflows add-trigger {options.name} NAME"
    columns = ("NAME", "WHEN", "NEXT", "LAST", "WHAT CAME OF IT")
    cli.emit(found, table(*columns, rows=shown, empty=empty))


def _add(cli: Cli, options: argparse.Namespace) -> None:
    workflow = workflow_named(cli.principal, options.name)
    kind = Trigger.Kind.WEBHOOK if options.webhook else Trigger.Kind.SCHEDULE
    made, text = save_trigger(cli.principal, workflow, _spec(options, kind))
    _told(cli, made, text)


def _set(cli: Cli, options: argparse.Namespace) -> None:
    trigger = _found(cli, options)
    changed, _ = save_trigger(cli.principal, trigger.workflow, _spec(options), trigger)
    _told(cli, changed)


def _secret(cli: Cli, options: argparse.Namespace) -> None:
    trigger = _found(cli, options)
    _told(cli, trigger, replace_secret(cli.principal, trigger))


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    trigger = _found(cli, options)
    found = trigger_json(triggers_of(trigger.workflow).get(pk=trigger.pk))
    remove_trigger(cli.principal, trigger)
    cli.emit(found)
    cli.say(f"{trigger.name} is gone; what it started stays.")


def _told(cli: Cli, trigger: Trigger, text: str = "") -> None:
    found = trigger_json(triggers_of(trigger.workflow).get(pk=trigger.pk))
    cli.emit(found | ({"hook_secret": text} if text else {}))
    if trigger.kind == Trigger.Kind.SCHEDULE:
        cli.say(f"{trigger.name} is due at {trigger.next_at:%Y-%m-%d %H:%M} UTC.")
        return
    cli.say(hook_url(trigger))
    if text:
        cli.say(text)
        if not cli.as_json:
            cli.err.print("Keep the secret: it is not shown again.", style="dim")


def _found(cli: Cli, options: argparse.Namespace) -> Trigger:
    return named(workflow_named(cli.principal, options.name), options.trigger)


def _time(one: dict[str, Any]) -> str:
    if one["cron"]:
        return f"{one['cron']} ({one['time_zone']})"
    return f"every {one['every_s']} s"


def _spec(options: argparse.Namespace, kind: str | None = None) -> TriggerSpec:
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


def _workflow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="WORKFLOW")


def _one(parser: argparse.ArgumentParser) -> None:
    _workflow(parser)
    parser.add_argument("trigger", metavar="NAME", help="of the trigger")


def _arguments(parser: argparse.ArgumentParser) -> None:
    _one(parser)
    parser.add_argument("--inputs", help="JSON, of each run; of a webhook with ${/body/…}; - reads")
    when = parser.add_mutually_exclusive_group()
    when.add_argument("--every", type=int, metavar="SECONDS")
    when.add_argument("--cron", metavar='"M H D M W"', help="when, as cron has it")
    parser.add_argument("--time-zone", metavar="NAME", help="of the cron expression (UTC)")
    parser.add_argument("--per-minute", type=int, metavar="N", help="runs that a webhook may start")
    declare_switch(parser)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    _arguments(parser)
    parser.add_argument("--webhook", action="store_true", help="a POST with its secret starts it")


VERBS = (
    Verb(
        "triggers",
        "List what starts a workflow by itself.",
        _list,
        _workflow,
        ("workflows triggers triage",),
    ),
    Verb(
        "add-trigger",
        "Start a workflow by a schedule, or by a webhook, whose secret is printed once.",
        _add,
        _add_arguments,
        (
            'workflows add-trigger report nightly --cron "0 3 * * *" --time-zone Europe/Berlin',
            "workflows add-trigger triage alerts --webhook"
            """ --inputs '{"title": "${/body/alerts/0/labels/alertname}"}'""",
        ),
    ),
    Verb(
        "set-trigger",
        "Change a trigger, or switch it on or off.",
        _set,
        _arguments,
        ("workflows set-trigger report nightly --every 3600", "workflows set-trigger a b --off"),
    ),
    Verb(
        "replace-secret",
        "Give a webhook another secret and print it once.",
        _secret,
        _one,
        ("workflows replace-secret triage alerts",),
    ),
    Verb(
        "remove-trigger",
        "Remove a trigger; what it started stays.",
        _remove,
        _one,
        ("workflows remove-trigger triage alerts",),
    ),
)
