"""An agent's resources and prompts: what is effective and why, and their use through the door."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents import calls
from agents.api.agents import AgentResource
from agents.api.shapes import LONGEST_CALL_S, EffectiveOfferShape, OutcomeShape
from agents.governance.offerings import Offer
from agents.governance.snapshots import snapshots
from agents.models import Agent
from agents.requests import Method
from agents.sessions.requests import require_run
from bonobot.lib.runtime import runtime
from bonobot.tenancy.active import client_of
from bonobot.tenancy.api.pages import page_of
from bonobot.tenancy.api.resources import READ_OR_RUN
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.api.shapes import Shape
from bonobot.tenancy.roles import Action
from mcp_servers.uri_templates import LONGEST_URI

SERVER = "b1c84d5e-5c0b-4c55-9d3a-0a7c1c1f2d3e"


class Texts(serializers.DictField):
    """A prompt's arguments: texts by their names."""

    child = serializers.CharField(allow_blank=True, trim_whitespace=False)


@extend_schema_serializer(
    examples=[OpenApiExample("A file", {"server_id": SERVER, "uri": "file:///srv/docs/a.md"})]
)
class ReadBody(Shape):
    """Which resource is read."""

    server_id = serializers.UUIDField()
    uri = serializers.CharField(max_length=LONGEST_URI, trim_whitespace=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=LONGEST_CALL_S)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A review",
            {"server_id": SERVER, "name": "review", "arguments": {"code": "print(1)"}},
        )
    ]
)
class PromptBody(Shape):
    """Which prompt is filled, with what."""

    server_id = serializers.UUIDField()
    name = serializers.CharField(max_length=512, trim_whitespace=False)
    arguments = Texts(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=LONGEST_CALL_S)


class OfferResource(AgentResource):
    """A resource of what an agent has beside tools."""

    kinds: tuple[str, ...] = ()
    orderings = ("server",)

    def listing(self, agent_id: str) -> Response:
        """List the offers of this resource's kinds, allowed or not."""
        self.check_parameters()
        agent = self.agent(agent_id)
        offers = snapshots().current("agent", agent.pk).offers_of(*self.kinds)
        return page_of(self.request, offers, _key, effective, by="server")

    def called(self, agent: Agent, method: Method, name: str, body: dict[str, Any]) -> Response:
        """Make the call as the agent, and answer with its outcome."""
        require_run(self.principal, agent)
        wanted = calls.Request(
            principal=self.principal,
            method=method,
            tool=name,
            arguments=body.get("arguments", {}),
            via="rest",
            client=client_of(self.request),
            holder=f"agent:{agent.pk}:{self.principal.id}",
            agent_id=agent.pk,
            server_id=body["server_id"],
            timeout_s=body.get("timeout_s"),
        )
        return Response(runtime().call(calls.call, wanted).as_dict())


class AgentResources(OfferResource):
    """The resources and templates of an agent."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    kinds = ("resource", "resource_template")

    @operation("list_agent_resources", answer=EffectiveOfferShape(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List every resource and template of the agent's servers.

        Each says whether the agent may read it and, if not, which rule says so and what to do.
        """
        return self.listing(agent_id)


class AgentPrompts(OfferResource):
    """The prompts of an agent."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    kinds = ("prompt",)

    @operation("list_agent_prompts", answer=EffectiveOfferShape(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List every prompt of the agent's servers.

        Each says whether the agent may use it and, if not, which rule says so and what to do.
        """
        return self.listing(agent_id)


class ReadResource(OfferResource):
    """The reading of a resource."""

    rules = {"POST": Action.USE_TOOLS}
    narrowed = ("POST",)

    @operation("read_agent_resource", body=ReadBody, answer=OutcomeShape, calls=True)
    def post(self, request: object, agent_id: str) -> Response:
        """Read a resource as an agent, under its ticks, policy, budgets and limits.

        The URI is that of a resource, or one that a ticked template means. Its contents are in
        `result`, as text in `text`.
        """
        agent = self.agent(agent_id)
        body = self.read(ReadBody)
        return self.called(agent, "resources/read", body["uri"], body)


class GetPrompt(OfferResource):
    """The filling of a prompt."""

    rules = {"POST": Action.USE_TOOLS}
    narrowed = ("POST",)

    @operation("get_agent_prompt", body=PromptBody, answer=OutcomeShape, calls=True)
    def post(self, request: object, agent_id: str) -> Response:
        """Fill a prompt as an agent; its messages are in `result`, as text in `text`.

        The text can be sent as a session's message.
        """
        agent = self.agent(agent_id)
        body = self.read(PromptBody)
        return self.called(agent, "prompts/get", body["name"], body)


def effective(offer: Offer) -> dict[str, Any]:
    """Return a resource, template or prompt with the decision about it."""
    facts, decision = offer.facts, offer.decision
    mime = offer.declaration.get("mimeType")
    return {
        "kind": facts.kind,
        "server": facts.server_name,
        "server_id": str(facts.server_id),
        "name": offer.name,
        "title": offer.title,
        "description": offer.description,
        "mime_type": mime if isinstance(mime, str) else "",
        "argument_schema": offer.argument_schema if facts.kind == "prompt" else None,
        "allowed": decision.allowed,
        "code": decision.code,
        "reason": decision.reason,
        "rule": decision.rule,
        "remedy": decision.remedy,
    }


def _key(offer: Offer) -> str:
    facts = offer.facts
    return f"{facts.server_name}/{facts.server_id}/{facts.kind}/{offer.name}"
