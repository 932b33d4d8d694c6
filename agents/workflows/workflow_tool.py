"""The built-in tools `workflow_…`, which run a workflow.

A run has its own session, as the workflow's agent; its cost is charged to the root session.
"""

import json
from functools import partial
from typing import Any
from uuid import UUID

from agents.builtin_tools.types import (
    AgentBuiltinTool,
    BuiltinTool,
    BuiltinToolContext,
    BuiltinToolHints,
)
from agents.flow_labels.text_labels import label_session_with_texts
from agents.models import Session, Workflow, WorkflowRun
from agents.policies.decisions import ToolFacts
from agents.sessions import child_sessions
from agents.sessions.ask_agent_tool import build_tool_name, get_parent_session_id
from agents.workflows.definitions import parse_workflow
from agents.workflows.runs import RunOrigin, check_run_inputs, create_run
from bonobot.core.i18n.messages import format_message
from mcp_servers.flow_labels import FlowLabel


def build_workflow_tool(workflow: Workflow) -> AgentBuiltinTool:
    """Return the tool that runs a workflow; callable if it is enabled and approved."""
    definition = parse_workflow(workflow.definition)
    tool = BuiltinTool(
        name=build_tool_name("workflow", workflow.name),
        description=definition.description
        or format_message("Run the workflow {name}.", name=workflow.name),
        input_schema=dict(definition.inputs),
        run=partial(_handle_workflow_call, workflow.pk),
        labels=(FlowLabel.REPEATABLE,),
        hints=BuiltinToolHints(
            read_only=False, destructive=True, idempotent=False, open_world=True
        ),
    )
    facts = ToolFacts(
        source="builtin",
        own_name=tool.name,
        label=tool.name,
        state=workflow.state,
        enabled=workflow.enabled,
    )
    return AgentBuiltinTool(tool, facts, tool.labels, workflow.digest)


async def _handle_workflow_call(
    workflow_id: UUID, context: BuiltinToolContext, arguments: dict[str, Any]
) -> str:
    parent_id = get_parent_session_id(context)
    start = partial(_start_child_run, workflow_id, parent_id, context, arguments)
    return await child_sessions.run_child(parent_id, start, context.stopping)


def _start_child_run(
    workflow_id: UUID, parent_id: UUID, context: BuiltinToolContext, arguments: dict[str, Any]
) -> UUID:
    workflow = Workflow.objects.get(pk=workflow_id, organization_id=context.organization_id)
    check_run_inputs(workflow, arguments)

    def create_child_run(child: Session) -> None:
        create_run(child, workflow, arguments, RunOrigin(via=WorkflowRun.Via.AGENT))

    message = f"{workflow.name} {json.dumps(arguments, ensure_ascii=False)[:500]}"
    principal, call_id = context.principal, context.call_id
    # The child session has the labels of its parent.
    label_session_with_texts(principal.actor, Session.objects.get(pk=parent_id), workflow)
    return child_sessions.start_child(
        principal, parent_id, call_id, workflow.agent_id, message, create_child_run
    )
