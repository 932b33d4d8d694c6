"""The command group `workflows`."""

import argparse
import json
from typing import TYPE_CHECKING, Any

from agents.cli.skills import (
    ENABLED_ARGUMENTS,
    add_wait_arguments,
    build_agents_arguments,
    collect_agents,
)
from agents.models import Session, Workflow, WorkflowRun
from bonobot.core.cli.command_group import (
    Argument,
    CommandContext,
    CommandFailed,
    CommandVerb,
    read_inputs,
    read_text,
)
from bonobot.core.cli.text_table import build_table
from bonobot.core.text.untrusted_text import make_visible

if TYPE_CHECKING:
    from agents.workflows.services import WorkflowSpec

NAME_ARGUMENT = (Argument("NAME", "Name of the workflow"),)
RUNS_LISTED = 50
MAX_TEXT_SHOWN = 300


def serialize_workflow(workflow: Workflow) -> dict[str, Any]:
    from agents.assignments import list_agent_slugs

    names = ("name", "description", "source", "enabled", "version", "digest", "state")
    values = {name: getattr(workflow, name) for name in names}
    return {
        "id": str(workflow.pk),
        **values,
        "agent": workflow.agent.slug,
        "agents": list_agent_slugs(workflow),
    }


def _list_workflows(cli: CommandContext, options: argparse.Namespace) -> None:
    rows = Workflow.objects.for_organization(cli.principal.organization_id)
    serialized = [serialize_workflow(row) for row in rows.select_related("agent")]
    table_rows = [
        (
            workflow["name"] if workflow["enabled"] else f"{workflow['name']} (disabled)",
            workflow["version"],
            workflow["agent"],
            f"{', '.join(workflow['agents']) or '–'} ({workflow['state']})",
            workflow["description"],
        )
        for workflow in serialized
    ]
    empty = "No workflows yet. Create one: bonobot workflows add NAME --file FILE"
    columns = ("NAME", "VERSION", "RUNS AS", "TOOL OF", "DESCRIPTION")
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _show_workflow_source(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.workflows.services import get_workflow

    workflow = get_workflow(cli.principal, options.name)
    cli.emit(serialize_workflow(workflow))
    cli.print_message(make_visible(workflow.source, len(workflow.source)))


def _create_workflow(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.workflows.services import save_workflow

    _show_workflow(cli, save_workflow(cli.principal, _build_spec(options)))


def _update_workflow(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.workflows.services import get_workflow, save_workflow

    workflow = get_workflow(cli.principal, options.name)
    _show_workflow(cli, save_workflow(cli.principal, _build_spec(options), workflow))


def _show_workflow(cli: CommandContext, workflow: Workflow) -> None:
    cli.emit(serialize_workflow(workflow))
    cli.print_message(
        f"{workflow.name} was saved as version {workflow.version}. Runs as {workflow.agent.slug}."
    )


def _approve_workflow(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.workflows.services import approve_workflow, get_workflow

    workflow = approve_workflow(cli.principal, get_workflow(cli.principal, options.name))
    cli.emit(serialize_workflow(workflow))
    cli.print_message("Approved. Its agents can now call this version.")


def _delete_workflow(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.workflows.services import delete_workflow, get_workflow

    workflow = get_workflow(cli.principal, options.name)
    serialized = serialize_workflow(workflow)
    delete_workflow(cli.principal, workflow)
    cli.emit(serialized)
    cli.print_message(f"{options.name} was deleted. Its runs are kept.")


def _run_workflow(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.cli.sessions import wait_for_session
    from agents.workflows.runs import run_workflow
    from agents.workflows.services import get_workflow

    workflow = get_workflow(cli.principal, options.name)
    run = run_workflow(cli.principal, workflow, read_inputs(options.inputs, "INPUTS"))
    if not options.no_wait:
        wait_for_session(cli, run.session, options)
    _show_run(cli, run)


def _list_runs(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.workflows.runs import serialize_run as run_json

    rows = WorkflowRun.objects.for_organization(cli.principal.organization_id)
    rows = rows.select_related("session")
    if options.name:
        from agents.workflows.services import get_workflow

        rows = rows.filter(workflow=get_workflow(cli.principal, options.name))
    serialized = [run_json(row) for row in rows[:RUNS_LISTED]]
    table_rows = [
        (r["id"], r["workflow"], r["status"], r["via"], r["started_by"], r["created_at"])
        for r in serialized
    ]
    columns = ("ID", "WORKFLOW", "STATUS", "STARTED VIA", "STARTED BY", "STARTED")
    empty = "No runs yet. Start one: bonobot workflows run NAME '{…}'"
    cli.emit(serialized, build_table(*columns, rows=table_rows, empty=empty))


def _show_run_steps(cli: CommandContext, options: argparse.Namespace) -> None:
    _show_run(cli, _get_run(cli, options.id), fail_when_unfinished=False)


def _cancel_run(cli: CommandContext, options: argparse.Namespace) -> None:
    from agents.sessions.services import cancel_session
    from agents.workflows.runs import serialize_run as run_json

    run = _get_run(cli, options.id)
    was_running = cancel_session(cli.principal, run.session)
    cli.emit(run_json(_get_run(cli, options.id)))
    cli.print_message("Cancellation requested." if was_running else "The run has already ended.")


def _show_run(cli: CommandContext, run: WorkflowRun, *, fail_when_unfinished: bool = True) -> None:
    from agents.workflows.runs import list_steps
    from agents.workflows.runs import serialize_run as run_json

    run = WorkflowRun.objects.select_related("session").get(pk=run.pk)
    steps = [
        {**step, "call_id": step["call_id"] and str(step["call_id"])} for step in list_steps(run)
    ]
    rows = [
        (s["id"], s["state"], s["tool"], make_visible(s["text"], MAX_TEXT_SHOWN)) for s in steps
    ]
    table = build_table("STEP", "STATE", "TOOL", "RESULT", rows=rows, empty="No steps.")
    cli.emit({**run_json(run), "steps": steps}, table)
    session = run.session
    cli.print_message(f"{run.name}: {session.status} {session.error_detail}".rstrip())
    if run.outputs:
        cli.print_message(json.dumps(run.outputs, indent=2, ensure_ascii=False))
    failing_statuses = (Session.Status.FAILED, Session.Status.CANCELLED, Session.Status.WAITING)
    if fail_when_unfinished and session.status in failing_statuses:
        raise CommandFailed


def _get_run(cli: CommandContext, run_id: str) -> WorkflowRun:
    rows = WorkflowRun.objects.select_related("session__agent")
    return cli.get_row(WorkflowRun, rows, pk=run_id)


def _build_spec(options: argparse.Namespace) -> "WorkflowSpec":
    from agents.workflows.services import WorkflowSpec

    return WorkflowSpec(
        name=options.name,
        source=read_text(options.file),
        enabled=options.enabled,
        agents=collect_agents(options),
    )


_RUN_ID_ARGUMENT = (Argument("RUN", "ID of the run", dest="id"),)


_WRITE_ARGUMENTS = (
    *NAME_ARGUMENT,
    Argument("--file FILE", "YAML or JSON file with the definition. -: standard input"),
    build_agents_arguments("Agent that gets the workflow as a tool. Repeatable"),
    *ENABLED_ARGUMENTS,
)


_RUN_ARGUMENTS = (
    *NAME_ARGUMENT,
    Argument(
        "INPUTS",
        "Inputs as a JSON object (default: {}). -: standard input",
        nargs="?",
        default="{}",
    ),
    Argument("--no-wait", "Start the run without waiting for it"),
    add_wait_arguments,
)


VERBS = (
    CommandVerb("list", "List workflows", _list_workflows, examples=("workflows list --json",)),
    CommandVerb(
        "show",
        "Show the definition of a workflow",
        _show_workflow_source,
        arguments=NAME_ARGUMENT,
        examples=("workflows show triage",),
    ),
    CommandVerb(
        "add",
        "Create a workflow",
        _create_workflow,
        arguments=_WRITE_ARGUMENTS,
        examples=("workflows add triage --file triage.yaml",),
    ),
    CommandVerb(
        "set",
        "Update a workflow. Runs in progress aren't affected.",
        _update_workflow,
        arguments=_WRITE_ARGUMENTS,
        examples=("workflows set triage --file triage.yaml", "workflows set triage --agent helper"),
    ),
    CommandVerb(
        "approve",
        "Approve the current version of a workflow for its agents",
        _approve_workflow,
        arguments=NAME_ARGUMENT,
        examples=("workflows approve triage",),
    ),
    CommandVerb(
        "run",
        "Run a workflow and wait until it ends",
        _run_workflow,
        arguments=_RUN_ARGUMENTS,
        examples=(
            """workflows run triage '{"title": "disk full"}'""",
            "workflows run nightly --no-wait",
        ),
    ),
    CommandVerb(
        "runs",
        "List the latest runs",
        _list_runs,
        arguments=(Argument("NAME", "Only runs of this workflow", nargs="?"),),
        examples=("workflows runs triage",),
    ),
    CommandVerb(
        "steps",
        "Show a run with its steps",
        _show_run_steps,
        arguments=_RUN_ID_ARGUMENT,
        examples=("workflows steps 0198c0de-…",),
    ),
    CommandVerb(
        "cancel",
        "Cancel a run",
        _cancel_run,
        arguments=_RUN_ID_ARGUMENT,
        examples=("workflows cancel 0198c0de-…",),
    ),
    CommandVerb(
        "remove",
        "Delete a workflow. Its runs are kept.",
        _delete_workflow,
        arguments=NAME_ARGUMENT,
        examples=("workflows remove triage",),
        confirmation="Delete the workflow {name}?",
    ),
)
