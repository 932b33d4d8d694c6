"""Shapes of tools, decisions and calls."""

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from bonobot.tenancy.api.shapes import Shape
from mcp_servers.api.configurations import JSON_OBJECT

LONGEST_CALL_S = 600


@extend_schema_field({**JSON_OBJECT, "description": "As the tool's input schema says."})
class Arguments(serializers.DictField):
    """A tool's arguments, checked against its own schema by the door."""


@extend_schema_field({**JSON_OBJECT, "description": "The upstream's own JSON."})
class UpstreamResult(serializers.DictField):
    """What an upstream answered, unknown fields and all."""


class EffectiveToolShape(Shape):
    """A tool of an agent, and whether it may be called."""

    name = serializers.CharField(help_text="As models see it.")
    source = serializers.ChoiceField(["mcp", "builtin"])  # type: ignore[assignment]  # DRF moves it
    server = serializers.CharField(help_text="Name of its server; blank for built-in tools.")
    server_id = serializers.UUIDField(allow_null=True)
    tool = serializers.CharField(help_text="The server's own name for it.")
    description = serializers.CharField()
    input_schema = serializers.DictField()
    decision = serializers.ChoiceField(
        ["allow", "ask", "deny"], help_text="`ask`: a person has to say yes to each call."
    )
    allowed = serializers.BooleanField(help_text="Whether a call goes on by itself.")
    code = serializers.CharField(help_text="Why not; blank where it is allowed.")
    reason = serializers.CharField()
    rule = serializers.CharField(help_text="The rule that decided.")
    remedy = serializers.CharField()


class EffectiveOfferShape(Shape):
    """A resource, template or prompt of an agent, and whether it may be used."""

    kind = serializers.ChoiceField(["resource", "resource_template", "prompt"])
    server = serializers.CharField(help_text="Name of its server.")
    server_id = serializers.UUIDField()
    name = serializers.CharField(help_text="Its URI, its URI template, or a prompt's name.")
    title = serializers.CharField()
    description = serializers.CharField()
    mime_type = serializers.CharField(help_text="Blank where the server doesn't say it.")
    argument_schema = serializers.DictField(
        allow_null=True, help_text="Of a prompt: its arguments as a JSON Schema."
    )
    allowed = serializers.BooleanField()
    code = serializers.CharField(help_text="Why not; blank where it is allowed.")
    reason = serializers.CharField()
    rule = serializers.CharField(help_text="The rule that decided.")
    remedy = serializers.CharField()


class StageShape(Shape):
    """What one stage of the door says by itself."""

    stage = serializers.CharField()
    verdict = serializers.ChoiceField(
        ["allow", "ask", "deny", "skip"], help_text="`skip`: it has no say this time."
    )
    allows = serializers.BooleanField(help_text="Whether it doesn't refuse.")
    rule = serializers.CharField()
    code = serializers.CharField()
    reason = serializers.CharField()
    remedy = serializers.CharField()
    who = serializers.CharField(help_text="The roles that can change what this stage says.")


class ExplanationShape(Shape):
    """Why an agent can, or can't, use a tool."""

    tool = serializers.CharField()
    decision = serializers.ChoiceField(["allow", "ask", "deny"])
    allowed = serializers.BooleanField(help_text="Whether the call would go on by itself.")
    first = serializers.CharField(
        help_text="The first stage that refuses, else the first that asks; blank: none does."
    )
    code = serializers.CharField()
    rule = serializers.CharField()
    reason = serializers.CharField()
    remedy = serializers.CharField()
    who = serializers.CharField(help_text="The roles that can change the outcome.")
    stages = StageShape(many=True)


@extend_schema_serializer(
    examples=[OpenApiExample("With arguments", {"arguments": {"timezone": "Europe/Berlin"}})]
)
class ExplainBody(Shape):
    """The arguments of the call that is asked about."""

    arguments = Arguments()


@extend_schema_serializer(
    examples=[OpenApiExample("A call", {"arguments": {"timezone": "Europe/Berlin"}})]
)
class CallBody(Shape):
    """A call's arguments."""

    arguments = Arguments(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=LONGEST_CALL_S)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "An answer",
            {
                "call_id": "0191f2d0-7f0c-7c3e-9d1f-0d5f2b8f6a11",
                "outcome": "ok",
                "is_error": False,
                "text": "2026-11-21T22:10:03+01:00",
                "result": {"content": [{"type": "text", "text": "2026-11-21T22:10:03+01:00"}]},
                "code": "",
                "remedy": "",
                "duration_ms": 41,
                "cost_microusd": 0,
                "server": "time",
                "tool": "get_current_time",
                "sanitized": {},
                "flagged": {},
            },
        )
    ]
)
class OutcomeShape(Shape):
    """What came of an admitted call; an upstream's failure is an outcome too."""

    call_id = serializers.UUIDField(allow_null=True, help_text="Its row in the audit.")
    outcome = serializers.ChoiceField(["ok", "error", "unknown"])
    is_error = serializers.BooleanField()
    text = serializers.CharField(help_text="As models see it: cleaned and bounded.")
    result = UpstreamResult()
    code = serializers.CharField()
    remedy = serializers.CharField()
    duration_ms = serializers.IntegerField()
    cost_microusd = serializers.IntegerField(help_text="What the server takes for it.")
    server = serializers.CharField()
    tool = serializers.CharField()
    sanitized = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="What was removed from the text or made inert, by rule.",
    )
    flagged = serializers.DictField(
        child=serializers.IntegerField(),
        help_text="What in the text reads like orders to a model, by rule.",
    )
