"""`bonobot workflows …`: sequences of calls, written, run and looked at."""

import argparse
import json
from typing import Any

from agents.models import Session, Workflow, WorkflowRun
from agents.named import agents_of
from agents.sessions.requests import cancel
from agents.workflows.keeping import (
    WorkflowSpec,
    approve_workflow,
    named,
    remove_workflow,
    save_workflow,
)
from agents.workflows.starting import run_workflow
from agents.workflows.telling import as_json as run_json
from agents.workflows.telling import steps_of
from bonobot.cli.group import Cli, Failed, Verb, table
from bonobot.cli.inputs import read_inputs, read_text
from bonobot.cli.running import declare_waiting, rested
from bonobot.cli.triggers import VERBS as TRIGGER_VERBS
from bonobot.cli.written import declare_given, declare_name, declare_switch, given_to
from bonobot.lib.untrusted import visible

RUNS_LISTED = 50
SHOWN = 300


def as_json(workflow: Workflow) -> dict[str, Any]:
    """Return a workflow as programs read it."""
    names = ("name", "description", "source", "enabled", "version", "digest", "state")
    found = {name: getattr(workflow, name) for name in names}
    return {
        "id": str(workflow.pk),
        **found,
        "agent": workflow.agent.slug,
        "agents": agents_of(workflow),
    }


def _list(cli: Cli, options: argparse.Namespace) -> None:
    rows = Workflow.objects.for_organization(cli.principal.organization_id)
    found = [as_json(row) for row in rows.select_related("agent")]
    shown = [
        (
            one["name"] if one["enabled"] else f"{one['name']} (off)",
            one["version"],
            one["agent"],
            f"{', '.join(one['agents']) or '–'} ({one['state']})",
            one["description"],
        )
        for one in found
    ]
    empty = "No workflows yet. Write one: bonobot workflows add NAME --file FILE"
    columns = ("NAME", "VERSION", "RUNS AS", "TOOL OF", "WHAT IT DOES")
    cli.emit(found, table(*columns, rows=shown, empty=empty))


def _show(cli: Cli, options: argparse.Namespace) -> None:
    workflow = named(cli.principal, options.name)
    cli.emit(as_json(workflow))
    cli.say(visible(workflow.source, len(workflow.source)))


def _add(cli: Cli, options: argparse.Namespace) -> None:
    _told(cli, save_workflow(cli.principal, _spec(options)))


def _set(cli: Cli, options: argparse.Namespace) -> None:
    workflow = named(cli.principal, options.name)
    _told(cli, save_workflow(cli.principal, _spec(options), workflow))


def _told(cli: Cli, workflow: Workflow) -> None:
    cli.emit(as_json(workflow))
    cli.say(f"{workflow.name} is at version {workflow.version} and runs as {workflow.agent.slug}.")


def _approve(cli: Cli, options: argparse.Namespace) -> None:
    workflow = approve_workflow(cli.principal, named(cli.principal, options.name))
    cli.emit(as_json(workflow))
    cli.say(f"{workflow.name} may be called as it stands by the agents that have it.")


def _remove(cli: Cli, options: argparse.Namespace) -> None:
    workflow = named(cli.principal, options.name)
    found = as_json(workflow)
    remove_workflow(cli.principal, workflow)
    cli.emit(found)
    cli.say(f"{options.name} is gone; its runs stay.")


def _run(cli: Cli, options: argparse.Namespace) -> None:
    workflow = named(cli.principal, options.name)
    run = run_workflow(cli.principal, workflow, read_inputs(options.inputs, "INPUTS"))
    if not options.no_wait:
        rested(cli, run.session, options)
    _shown(cli, run)


def _runs(cli: Cli, options: argparse.Namespace) -> None:
    rows = WorkflowRun.objects.for_organization(cli.principal.organization_id)
    rows = rows.select_related("session")
    if options.name:
        rows = rows.filter(workflow=named(cli.principal, options.name))
    found = [run_json(row) for row in rows[:RUNS_LISTED]]
    shown = [
        (r["id"], r["workflow"], r["status"], r["via"], r["started_by"], r["created_at"])
        for r in found
    ]
    columns = ("ID", "WORKFLOW", "STATUS", "VIA", "BY", "STARTED")
    empty = "Nothing ran yet. Start one: bonobot workflows run NAME '{…}'"
    cli.emit(found, table(*columns, rows=shown, empty=empty))


def _run_shown(cli: Cli, options: argparse.Namespace) -> None:
    _shown(cli, _found(cli, options.id), failing=False)


def _cancel(cli: Cli, options: argparse.Namespace) -> None:
    run = _found(cli, options.id)
    was_open = cancel(cli.principal, run.session)
    cli.emit(run_json(_found(cli, options.id)))
    cli.say("It is being cancelled." if was_open else "It rests already.")


def _shown(cli: Cli, run: WorkflowRun, *, failing: bool = True) -> None:
    run = WorkflowRun.objects.select_related("session").get(pk=run.pk)
    steps = [{**one, "call_id": one["call_id"] and str(one["call_id"])} for one in steps_of(run)]
    rows = [(s["id"], s["state"], s["tool"], visible(s["text"], SHOWN)) for s in steps]
    drawn = table("STEP", "STATE", "TOOL", "WHAT CAME OF IT", rows=rows, empty="No steps.")
    cli.emit({**run_json(run), "steps": steps}, drawn)
    session = run.session
    cli.say(f"{run.name}: {session.status} {session.error_detail}".rstrip())
    if run.outputs:
        cli.say(json.dumps(run.outputs, indent=2, ensure_ascii=False))
    resting = (Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING)
    if failing and session.status in resting:
        raise Failed


def _found(cli: Cli, run_id: str) -> WorkflowRun:
    rows = WorkflowRun.objects.select_related("session__agent")
    found: WorkflowRun = rows.get_or_404(cli.principal.organization_id, pk=run_id)
    return found


def _spec(options: argparse.Namespace) -> WorkflowSpec:
    return WorkflowSpec(
        name=options.name,
        source=read_text(options.file),
        enabled=options.enabled,
        agents=given_to(options),
    )


def _id(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("id", metavar="RUN", help="id of the run")


def _write_arguments(parser: argparse.ArgumentParser) -> None:
    declare_name(parser)
    parser.add_argument("--file", help="its definition, YAML or JSON; - reads standard input")
    declare_given(parser, "have it as a tool")
    declare_switch(parser)


def _run_arguments(parser: argparse.ArgumentParser) -> None:
    declare_name(parser)
    parser.add_argument(
        "inputs", metavar="INPUTS", nargs="?", default="{}", help="JSON; - reads it"
    )
    parser.add_argument("--no-wait", action="store_true", help="only start it")
    declare_waiting(parser)


def _runs_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", metavar="NAME", nargs="?", help="those of one workflow")


VERBS = (
    Verb("list", "List the workflows.", _list, examples=("workflows list --json",)),
    Verb("show", "Show a workflow's definition.", _show, declare_name, ("workflows show triage",)),
    Verb(
        "add",
        "Write a workflow.",
        _add,
        _write_arguments,
        ("workflows add triage --file triage.yaml",),
    ),
    Verb(
        "set",
        "Change a workflow; runs that have begun go on as they began.",
        _set,
        _write_arguments,
        ("workflows set triage --file triage.yaml", "workflows set triage --agent helper"),
    ),
    Verb(
        "approve",
        "Let the agents that have a workflow call it as it stands.",
        _approve,
        declare_name,
        ("workflows approve triage",),
    ),
    Verb(
        "run",
        "Start a workflow and wait for its end.",
        _run,
        _run_arguments,
        ("""workflows run triage '{"title": "disk full"}'""", "workflows run nightly --no-wait"),
    ),
    Verb("runs", "List the latest runs.", _runs, _runs_arguments, ("workflows runs triage",)),
    Verb("steps", "Show a run with its steps.", _run_shown, _id, ("workflows steps 0198c0de-…",)),
    Verb("cancel", "Cancel a run.", _cancel, _id, ("workflows cancel 0198c0de-…",)),
    Verb("remove", "Remove a workflow.", _remove, declare_name, ("workflows remove triage",)),
    *TRIGGER_VERBS,
)
