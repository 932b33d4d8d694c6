"""An agent's tools: what is effective and why, and calls through the door."""

from typing import Any

from rest_framework.response import Response

from agents import calls
from agents.api.agents import AgentResource
from agents.api.shapes import (
    CallBody,
    EffectiveToolShape,
    ExplainBody,
    ExplanationShape,
    OutcomeShape,
)
from agents.governance.explaining import explain
from agents.governance.snapshots import Snapshot, Tool, snapshots
from agents.models import Agent
from agents.sessions.requests import require_run
from bonobot.lib.problems import NotFound
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.active import client_of
from bonobot.tenancy.api.pages import page_of
from bonobot.tenancy.api.resources import READ_OR_RUN
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.roles import Action


class ToolResource(AgentResource):
    """A resource of an agent's tools."""

    def snapshot(self, agent: Agent) -> Snapshot:
        """Return what decisions about the agent's calls are made from, as of now."""
        return snapshots().current("agent", agent.pk)


class AgentTools(ToolResource):
    """The tools of an agent."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    orderings = ("name",)

    @operation("list_agent_tools", answer=EffectiveToolShape(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List every tool that the agent's servers and Bonobot offer it.

        Each says whether the agent may call it and, if not, which rule says so and what to do.
        """
        self.check_parameters()
        snapshot = self.snapshot(self.agent(agent_id))
        tools = list(snapshot.tools.values())
        return page_of(self.request, tools, lambda tool: tool.name, effective)


class ExplainTool(ToolResource):
    """The decision about one tool."""

    rules = {"GET": READ_OR_RUN, "POST": READ_OR_RUN}
    narrowed = ("GET", "POST")

    @operation("explain_tool", answer=ExplanationShape)
    def get(self, request: object, agent_id: str, name: str) -> Response:
        """Explain why an agent can, or can't, use a tool: every stage with its verdict."""
        return self._explained(agent_id, name, None)

    @operation("explain_call", body=ExplainBody, answer=ExplanationShape)
    def post(self, request: object, agent_id: str, name: str) -> Response:
        """Explain what a call with these arguments would come to; nothing is called."""
        self.agent(agent_id)
        return self._explained(agent_id, name, self.read(ExplainBody)["arguments"])

    def _explained(self, agent_id: str, name: str, arguments: Any) -> Response:
        agent = self.agent(agent_id)
        snapshot = self.snapshot(agent)
        tool = snapshot.tools.get(name)
        if tool is None:
            raise NotFound(
                say(
                    "The agent `{agent_slug}` has no tool {name!r}.",
                    agent_slug=agent.slug,
                    name=name,
                ),
                code="unknown_tool",
                field="name",
                remedy="List the agent's tools; a new one appears after its server's discovery.",
            )
        return Response(explain(self.principal, snapshot, tool, arguments))


class CallTool(ToolResource):
    """A call of an agent's tool."""

    rules = {"POST": Action.USE_TOOLS}
    narrowed = ("POST",)

    @operation("call_agent_tool", body=CallBody, answer=OutcomeShape, calls=True)
    def post(self, request: object, agent_id: str, name: str) -> Response:
        """Call a tool as an agent, under its policy, budgets and limits.

        A refusal is a problem with the rule that refused; an upstream's failure is an outcome.
        """
        agent = self.agent(agent_id)
        require_run(self.principal, agent)
        body = self.read(CallBody)
        wanted = calls.Request(
            principal=self.principal,
            tool=name,
            arguments=body.get("arguments", {}),
            via="rest",
            client=client_of(self.request),
            holder=f"agent:{agent.pk}:{self.principal.id}",
            agent_id=agent.pk,
            timeout_s=body.get("timeout_s"),
        )
        return Response(runtime().call(calls.call, wanted).as_dict())


def effective(tool: Tool) -> dict[str, Any]:
    """Return a tool with the decision about it."""
    facts, decision = tool.facts, tool.decision
    return {
        "name": tool.name,
        "source": facts.source,
        "server": facts.server_name,
        "server_id": str(facts.server_id) if facts.server_id else None,
        "tool": facts.own_name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "decision": decision.verdict,
        "allowed": decision.allowed,
        "code": decision.code,
        "reason": decision.reason,
        "rule": decision.rule,
        "remedy": decision.remedy,
    }
