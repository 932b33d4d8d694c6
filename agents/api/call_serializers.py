"""Serializers of tools, decisions, call results, steps and messages."""

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from agents.attachments import MAX_ATTACHMENTS, MAX_TEXT_BYTES
from agents.images import MAX_IMAGE_BYTES
from agents.models import Step
from agents.sessions.services import MAX_MESSAGE_LENGTH
from bonobot.core.api.serializers import StrictSerializer
from mcp_servers.api.serializers import JSON_OBJECT

MAX_CALL_S = 600


@extend_schema_field({**JSON_OBJECT, "description": "As the tool's input schema says."})
class ToolArgumentsField(serializers.DictField):
    """A tool's arguments, checked against its own schema by the door."""


@extend_schema_field({**JSON_OBJECT, "description": "The upstream's own JSON."})
class UpstreamResultField(serializers.DictField):
    """What an upstream answered, unknown fields and all."""


class EffectiveToolSerializer(StrictSerializer):
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


class EffectiveDefinitionSerializer(StrictSerializer):
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


class ExplanationStageSerializer(StrictSerializer):
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


class ExplanationSerializer(StrictSerializer):
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
    stages = ExplanationStageSerializer(many=True)


@extend_schema_serializer(
    examples=[OpenApiExample("With arguments", {"arguments": {"timezone": "Europe/Berlin"}})]
)
class ExplainBody(StrictSerializer):
    """The arguments of the call that is asked about."""

    arguments = ToolArgumentsField()


@extend_schema_serializer(
    examples=[OpenApiExample("A call", {"arguments": {"timezone": "Europe/Berlin"}})]
)
class CallToolBody(StrictSerializer):
    """A call's arguments."""

    arguments = ToolArgumentsField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=MAX_CALL_S)


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
class CallResultSerializer(StrictSerializer):
    """What came of an admitted call; an upstream's failure is an outcome too."""

    call_id = serializers.UUIDField(allow_null=True, help_text="Its row in the audit.")
    outcome = serializers.ChoiceField(["ok", "error", "unknown"])
    is_error = serializers.BooleanField()
    text = serializers.CharField(help_text="As models see it: cleaned and bounded.")
    result = UpstreamResultField()
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


class StepImageSerializer(StrictSerializer):
    """An image of a step, which `/images/{sha256}` shows."""

    sha256 = serializers.CharField()
    media_type = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes.")
    name = serializers.CharField(required=False, help_text="Where a person attached it.")


class StepFileSerializer(StepImageSerializer):
    """A text that a person attached, which `/files/{sha256}` shows."""


class StepModelSerializer(StrictSerializer):
    """The model endpoint that was asked."""

    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.CharField()
    model = serializers.CharField()


class CallProgressSerializer(StrictSerializer):
    """How far a call has come, as its server says."""

    done = serializers.FloatField()
    total = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class StepSerializer(StrictSerializer):
    """One step; which of the later members are there depends on its kind."""

    seq = serializers.IntegerField()
    kind = serializers.ChoiceField(Step.Kind.choices)
    state = serializers.ChoiceField(Step.State.choices)
    turn = serializers.IntegerField()
    index = serializers.IntegerField()
    call_id = serializers.UUIDField(allow_null=True)
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    text = serializers.CharField(required=False)
    by = serializers.CharField(required=False)
    replaces = serializers.IntegerField(
        required=False, help_text="This message supersedes the steps from here up to itself."
    )
    name = serializers.CharField(required=False)
    arguments = serializers.DictField(required=False, allow_null=True)
    server = serializers.CharField(required=False)
    tool = serializers.CharField(required=False)
    duration_ms = serializers.IntegerField(required=False)
    flagged = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text="What in a result reads like orders to a model, by rule.",
    )
    sanitized = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text="What was removed from a result or made inert, by rule.",
    )
    progress = CallProgressSerializer(required=False, help_text="How far a running call has come.")
    images = StepImageSerializer(many=True, required=False)
    files = StepFileSerializer(many=True, required=False)
    finish = serializers.CharField(required=False)
    endpoint = StepModelSerializer(required=False)
    wait_s = serializers.FloatField(required=False, help_text="Before a model is asked again.")
    usage = serializers.DictField(required=False)
    cost_microusd = serializers.IntegerField(required=False)
    answer = serializers.CharField(required=False)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)
    field = serializers.CharField(required=False)
    rule = serializers.CharField(required=False)


EXAMPLE_MESSAGE = "What time is it in Asia/Tokyo?"


class AttachmentBody(StrictSerializer):
    """A file that is sent with a message."""

    name = serializers.CharField(max_length=255)
    content = serializers.CharField(
        trim_whitespace=False,
        help_text=(
            f"Base64 of an image (PNG, JPEG, GIF, WebP; {MAX_IMAGE_BYTES:,} bytes at "
            f"most) or of a text in UTF-8 ({MAX_TEXT_BYTES:,} bytes at most)."
        ),
    )


@extend_schema_serializer(examples=[OpenApiExample("A message", {"message": EXAMPLE_MESSAGE})])
class MessageBody(StrictSerializer):
    """A message for an agent."""

    message = serializers.CharField(
        max_length=MAX_MESSAGE_LENGTH, trim_whitespace=False, allow_blank=True
    )
    attachments = AttachmentBody(
        many=True, required=False, help_text=f"At most {MAX_ATTACHMENTS}; the body is bounded, too."
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample("The last message, as it was", {}),
        OpenApiExample("Another one, in other words", {"seq": 5, "message": EXAMPLE_MESSAGE}),
    ]
)
class ResendMessageBody(StrictSerializer):
    """A message that is sent anew, in its place."""

    seq = serializers.IntegerField(
        required=False, min_value=1, help_text="Of the message; the last one if left out."
    )
    message = serializers.CharField(
        required=False,
        max_length=MAX_MESSAGE_LENGTH,
        trim_whitespace=False,
        allow_blank=True,
        help_text="What it says now; the same as before if left out.",
    )
    attachments = AttachmentBody(
        many=True, required=False, help_text="Beside those that it has already."
    )
