"""REST of an agent's tools, resources and prompts, of decisions about calls, and of calls."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.calls import pipeline
from agents.calls.definitions import SnapshotDefinition
from agents.calls.explain import build_missing_tool_error, explain_call
from agents.calls.snapshots import CallSnapshot, SnapshotTool, get_snapshot_cache
from agents.calls.types import Method
from agents.flow_labels.text_labels import label_endpoint_reader
from agents.models import Agent
from agents.sessions.services import require_run_permission
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import READ_OR_RUN
from bonobot.accounts.current_organization import read_client_name
from bonobot.accounts.roles import Action
from bonobot.core.api.pagination import paginate_items
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.runtime import get_runtime
from mcp_servers.api.serializers import JSON_OBJECT
from mcp_servers.uri_templates import MAX_URI_LENGTH

MAX_CALL_S = 600


@extend_schema_field({**JSON_OBJECT, "description": "As defined by the tool's input schema."})
class ToolArgumentsField(serializers.DictField):
    """A tool's arguments; the call pipeline validates them against the tool's input schema."""


@extend_schema_field({**JSON_OBJECT, "description": "The server's response."})
class UpstreamResultField(serializers.DictField):
    """The server's response, including unknown fields."""


class EffectiveToolSerializer(StrictSerializer):
    """A tool of an agent, and whether the agent can call it."""

    name = serializers.CharField(help_text="The tool's name as models see it.")
    source = serializers.ChoiceField(["mcp", "builtin"])  # type: ignore[assignment]  # DRF moves it
    server = serializers.CharField(help_text="Name of its server; empty for built-in tools.")
    server_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField(help_text="The tool's name on its server.")
    description = serializers.CharField()
    input_schema = serializers.DictField()
    decision = serializers.ChoiceField(
        ["allow", "ask", "deny"], help_text="`ask`: each call requires approval."
    )
    allowed = serializers.BooleanField(help_text="True if the call needs no approval.")
    code = serializers.CharField(help_text="Why it isn't allowed; empty if it is.")
    reason = serializers.CharField()
    rule = serializers.CharField(help_text="The rule that made the decision.")
    remedy = serializers.CharField()


class EffectiveDefinitionSerializer(StrictSerializer):
    """A resource, template, skill, or prompt of an agent, and whether the agent can use it."""

    kind = serializers.ChoiceField(["resource", "resource_template", "skill", "prompt"])
    server = serializers.CharField(help_text="Name of its server.")
    server_id = serializers.UUIDField()
    name = serializers.CharField(help_text="Its URI or URI template, or the name of a prompt.")
    title = serializers.CharField()
    description = serializers.CharField()
    mime_type = serializers.CharField(help_text="Empty if the server doesn't declare it.")
    argument_schema = serializers.DictField(
        allow_null=True, help_text="For a prompt: its arguments as JSON Schema."
    )
    allowed = serializers.BooleanField()
    code = serializers.CharField(help_text="Why it isn't allowed; empty if it is.")
    reason = serializers.CharField()
    rule = serializers.CharField(help_text="The rule that made the decision.")
    remedy = serializers.CharField()


class ExplanationStageSerializer(StrictSerializer):
    """The verdict of one stage of the call pipeline."""

    stage = serializers.CharField()
    verdict = serializers.ChoiceField(
        ["allow", "ask", "deny", "skip"], help_text="`skip`: the stage doesn't apply."
    )
    allows = serializers.BooleanField(help_text="True unless the stage denies the call.")
    rule = serializers.CharField()
    code = serializers.CharField()
    reason = serializers.CharField()
    remedy = serializers.CharField()
    changeable_by = serializers.CharField(
        help_text="The roles that can change this stage's verdict."
    )


class ExplanationSerializer(StrictSerializer):
    """Why an agent can or can't call a tool."""

    tool = serializers.CharField()
    decision = serializers.ChoiceField(["allow", "ask", "deny"])
    allowed = serializers.BooleanField(help_text="True if the call needs no approval.")
    first = serializers.CharField(
        help_text=(
            "The first stage that denies the call, or else the first that requires approval; "
            "empty if there is none."
        )
    )
    code = serializers.CharField()
    rule = serializers.CharField()
    reason = serializers.CharField()
    remedy = serializers.CharField()
    changeable_by = serializers.CharField(help_text="The roles that can change the decision.")
    stages = ExplanationStageSerializer(many=True)


class ExplainBody(StrictSerializer):
    """The arguments of the call to explain."""

    arguments = ToolArgumentsField()


class CallToolBody(StrictSerializer):
    """The arguments of a call."""

    arguments = ToolArgumentsField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=MAX_CALL_S)


class CallResultSerializer(StrictSerializer):
    """The result of a call; a failure of the server is an outcome, not a problem."""

    call_id = serializers.UUIDField(allow_null=True, help_text="ID of the audit entry.")
    outcome = serializers.ChoiceField(["ok", "error", "unknown"])
    is_error = serializers.BooleanField()
    text = serializers.CharField(help_text="The result as models see it: sanitized and truncated.")
    result = UpstreamResultField()
    code = serializers.CharField()
    remedy = serializers.CharField()
    duration_ms = serializers.IntegerField()
    cost_microusd = serializers.IntegerField(help_text="The server's price for the call.")
    server = serializers.CharField()
    tool = serializers.CharField()
    sanitized = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Number of text passages removed or neutralized, by rule.",
    )
    flagged = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="Number of text passages that look like instructions to a model, by rule.",
    )


class PromptArgumentsField(serializers.DictField):
    """A prompt's arguments: strings by name."""

    child = serializers.CharField(allow_blank=True, trim_whitespace=False)


class ReadResourceBody(StrictSerializer):
    """The resource to read."""

    server_id = serializers.UUIDField()
    uri = serializers.CharField(max_length=MAX_URI_LENGTH, trim_whitespace=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=MAX_CALL_S)


class GetPromptBody(StrictSerializer):
    """The prompt to get, and its arguments."""

    server_id = serializers.UUIDField()
    name = serializers.CharField(max_length=512, trim_whitespace=False)
    arguments = PromptArgumentsField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=MAX_CALL_S)


class AgentDefinitionView(AgentView):
    """Base class for an agent's resources and prompts."""

    kinds: tuple[str, ...] = ()
    orderings = ("server",)

    def list_definitions(self, agent_id: str) -> Response:
        """List the agent's definitions of the view's kinds, allowed or not."""
        self.check_parameters()
        agent = self.get_agent(agent_id)
        label_endpoint_reader(self.principal, agent_id=agent.pk)
        definitions = (
            get_snapshot_cache().load_current("agent", agent.pk).list_definitions(*self.kinds)
        )
        return paginate_items(
            self.request, definitions, _get_sort_key, serialize_definition, ordering_name="server"
        )

    def call_as_agent(
        self, agent: Agent, method: Method, name: str, body: dict[str, Any]
    ) -> Response:
        """Make the call as the agent; return its outcome."""
        require_run_permission(self.principal, agent)
        call_request = pipeline.CallRequest(
            principal=self.principal,
            method=method,
            tool=name,
            arguments=body.get("arguments", {}),
            via="rest",
            client=read_client_name(self.request),
            holder=f"agent:{agent.pk}:{self.principal.id}",
            agent_id=agent.pk,
            server_id=body["server_id"],
            timeout_s=body.get("timeout_s"),
        )
        return Response(get_runtime().call(pipeline.make_call, call_request).as_dict())


class AgentResourceListView(AgentDefinitionView):
    """The resources, resource templates and skills of an agent."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    kinds = ("resource", "resource_template", "skill")

    @describe_operation("list_agent_resources", answer=EffectiveDefinitionSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's resources, resource templates, and skills.

        Each has the policy decision. If the agent can't read it, the response has the rule and a
        remedy.
        """
        return self.list_definitions(agent_id)


class AgentPromptListView(AgentDefinitionView):
    """The prompts of an agent."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    kinds = ("prompt",)

    @describe_operation("list_agent_prompts", answer=EffectiveDefinitionSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's prompts.

        Each has the policy decision. If the agent can't use it, the response has the rule and a
        remedy.
        """
        return self.list_definitions(agent_id)


class ReadResourceView(AgentDefinitionView):
    """Read a resource as an agent."""

    rules = {"POST": Action.USE_TOOLS}
    agent_token_methods = ("POST",)

    @describe_operation(
        "read_agent_resource", body=ReadResourceBody, answer=CallResultSerializer, calls=True
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Read a resource as an agent, subject to its policy, budgets, and rate limits.

        `uri` is the URI of a resource, or one that matches a selected template. The contents are in
        `result`, and as text in `text`.
        """
        agent = self.get_agent(agent_id)
        body = self.read_body(ReadResourceBody)
        return self.call_as_agent(agent, "resources/read", body["uri"], body)


class GetPromptView(AgentDefinitionView):
    """Get a prompt as an agent."""

    rules = {"POST": Action.USE_TOOLS}
    agent_token_methods = ("POST",)

    @describe_operation(
        "get_agent_prompt", body=GetPromptBody, answer=CallResultSerializer, calls=True
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Get a prompt with its arguments filled in.

        The messages are in `result`, and as text in `text`. You can send the text as a message of a
        session.
        """
        agent = self.get_agent(agent_id)
        body = self.read_body(GetPromptBody)
        return self.call_as_agent(agent, "prompts/get", body["name"], body)


def serialize_definition(definition: SnapshotDefinition) -> dict[str, Any]:
    """Serialize a resource, template or prompt with its decision."""
    facts, decision = definition.facts, definition.decision
    mime_type = definition.declaration.get("mimeType")
    return {
        "kind": facts.kind,
        "server": facts.server_name,
        "server_id": str(facts.server_id),
        "name": definition.name,
        "title": definition.title,
        "description": definition.description,
        "mime_type": mime_type if isinstance(mime_type, str) else "",
        "argument_schema": definition.argument_schema if facts.kind == "prompt" else None,
        "allowed": decision.allowed,
        "code": decision.code,
        "reason": decision.reason,
        "rule": decision.rule,
        "remedy": decision.remedy,
    }


def _get_sort_key(definition: SnapshotDefinition) -> str:
    facts = definition.facts
    return f"{facts.server_name}/{facts.server_id}/{facts.kind}/{definition.name}"


class AgentToolView(AgentView):
    """Base class for an agent's tools."""

    def get_snapshot(self, agent: Agent) -> CallSnapshot:
        """Return the current snapshot of the agent."""
        return get_snapshot_cache().load_current("agent", agent.pk)


class AgentToolListView(AgentToolView):
    """The tools of an agent."""

    rules = {"GET": READ_OR_RUN}
    agent_token_methods = ("GET",)
    orderings = ("name",)

    @describe_operation("list_agent_tools", answer=EffectiveToolSerializer(many=True))
    def get(self, request: object, agent_id: str) -> Response:
        """List an agent's tools: tools of its servers, and built-in tools.

        Each has the policy decision. If the agent can't call it, the response has the rule and a
        remedy.
        """
        self.check_parameters()
        agent = self.get_agent(agent_id)
        label_endpoint_reader(self.principal, agent_id=agent.pk)
        snapshot = self.get_snapshot(agent)
        tools = list(snapshot.tools.values())
        return paginate_items(self.request, tools, lambda tool: tool.name, serialize_tool)


class ExplainToolView(AgentToolView):
    """The decision for one tool."""

    rules = {"GET": READ_OR_RUN, "POST": READ_OR_RUN}
    agent_token_methods = ("GET", "POST")

    @describe_operation("explain_tool", answer=ExplanationSerializer)
    def get(self, request: object, agent_id: str, name: str) -> Response:
        """Explain why an agent can or can't call a tool; lists the verdict of each stage."""
        return self._explain(agent_id, name, None)

    @describe_operation("explain_call", body=ExplainBody, answer=ExplanationSerializer)
    def post(self, request: object, agent_id: str, name: str) -> Response:
        """Explain the decision for a call with these arguments, without calling the tool."""
        self.get_agent(agent_id)
        return self._explain(agent_id, name, self.read_body(ExplainBody)["arguments"])

    def _explain(self, agent_id: str, name: str, arguments: Any) -> Response:
        agent = self.get_agent(agent_id)
        label_endpoint_reader(self.principal, agent_id=agent.pk)
        snapshot = self.get_snapshot(agent)
        tool = snapshot.find_tool(name)
        if tool is None:
            raise build_missing_tool_error(self.principal, snapshot, name)
        return Response(explain_call(self.principal, snapshot, tool, arguments))


class CallToolView(AgentToolView):
    """Call a tool as an agent."""

    rules = {"POST": Action.USE_TOOLS}
    agent_token_methods = ("POST",)

    @describe_operation(
        "call_agent_tool", body=CallToolBody, answer=CallResultSerializer, calls=True
    )
    def post(self, request: object, agent_id: str, name: str) -> Response:
        """Call a tool as an agent, subject to its policy, budgets, and rate limits.

        A denied call returns a problem with the rule that denied it. If the server fails, the
        call's outcome is `error`.
        """
        agent = self.get_agent(agent_id)
        require_run_permission(self.principal, agent)
        body = self.read_body(CallToolBody)
        call_request = pipeline.CallRequest(
            principal=self.principal,
            tool=name,
            arguments=body.get("arguments", {}),
            via="rest",
            client=read_client_name(self.request),
            holder=f"agent:{agent.pk}:{self.principal.id}",
            agent_id=agent.pk,
            timeout_s=body.get("timeout_s"),
        )
        return Response(get_runtime().call(pipeline.make_call, call_request).as_dict())


def serialize_tool(tool: SnapshotTool) -> dict[str, Any]:
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
