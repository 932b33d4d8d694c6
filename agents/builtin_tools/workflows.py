"""`workflow_…`: a workflow as a tool, for agents that were given it (FEATURES E5).

It runs in a session of its own, as the agent that it runs as; the root of the tree pays.
"""

import json
from functools import partial
from typing import Any
from uuid import UUID

from agents.builtin_tools.asking import parent_of, tool_name
from agents.builtin_tools.tool import BuiltinTool, Context, Hints
from agents.models import Session, Workflow, WorkflowRun
from agents.sessions import children
from agents.workflows.definitions import read_workflow
from agents.workflows.starting import Origin, add_run, checked
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from mcp_servers.labels import Label


def workflow_tool(workflow: Workflow) -> BuiltinTool:
    """Return the tool that runs a workflow."""
    text = read_workflow(workflow.definition)
    return BuiltinTool(
        name=tool_name("workflow", workflow.name),
        description=text.description or say("Run the workflow {name}.", name=workflow.name),
        input_schema=dict(text.inputs),
        run=partial(_run, workflow.pk),
        labels=(Label.REPEATABLE,),
        hints=Hints(read_only=False, destructive=True, idempotent=False, open_world=True),
    )


async def _run(workflow_id: UUID, context: Context, arguments: dict[str, Any]) -> str:
    parent_id = parent_of(context)
    child_id = await runtime().orm(_begun, workflow_id, parent_id, context, arguments)
    await children.ended(child_id)
    return await runtime().orm(children.answer_of, child_id)


def _begun(workflow_id: UUID, parent_id: UUID, context: Context, arguments: dict[str, Any]) -> UUID:
    workflow = Workflow.objects.get(pk=workflow_id, organization_id=context.organization_id)
    checked(workflow, arguments)

    def follow(child: Session) -> None:
        add_run(child, workflow, arguments, Origin(via=WorkflowRun.Via.AGENT))

    said = f"{workflow.name} {json.dumps(arguments, ensure_ascii=False)[:500]}"
    principal, call_id = context.principal, context.call_id
    return children.begin(principal, parent_id, call_id, workflow.agent_id, said, follow)
