"""Serializers of tools, decisions, call results, steps and messages."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from agents.attachments import MAX_ATTACHMENTS, MAX_TEXT_BYTES
from agents.images import MAX_IMAGE_BYTES
from agents.models import Step
from agents.sessions.output_schemas import MAX_OUTPUT_SCHEMA_SIZE
from agents.sessions.services import MAX_MESSAGE_LENGTH
from bonobot.core.api.serializers import StrictSerializer
from bonobot.core.text.pdf_files import MAX_PDF_BYTES, MAX_PDF_PAGES
from mcp_servers.api.serializers import JSON_OBJECT

MAX_CALL_S = 600
OUTPUT_SCHEMA_HELP = (
    "JSON Schema of an object that the answer must match, with at most "
    f"{MAX_OUTPUT_SCHEMA_SIZE:,} characters."
)
EXAMPLE_MESSAGE = "What time is it in Asia/Tokyo?"


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


@extend_schema_serializer(
    examples=[OpenApiExample("With arguments", {"arguments": {"timezone": "Europe/Berlin"}})]
)
class ExplainBody(StrictSerializer):
    """The arguments of the call to explain."""

    arguments = ToolArgumentsField()


@extend_schema_serializer(
    examples=[OpenApiExample("A call", {"arguments": {"timezone": "Europe/Berlin"}})]
)
class CallToolBody(StrictSerializer):
    """The arguments of a call."""

    arguments = ToolArgumentsField(required=False)
    timeout_s = serializers.FloatField(required=False, min_value=0.1, max_value=MAX_CALL_S)


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "A result",
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


class StepImageSerializer(StrictSerializer):
    """An image of a step; download it from `/images/{sha256}`."""

    sha256 = serializers.CharField()
    media_type = serializers.CharField()
    size = serializers.IntegerField(help_text="Size in bytes.")
    name = serializers.CharField(required=False, help_text="File name, if a person attached it.")


class StepFileSerializer(StepImageSerializer):
    """A text or PDF file that a person attached; download it from `/files/{sha256}`."""

    pages = serializers.IntegerField(
        required=False, help_text="About how many pages a PDF file has."
    )


class StepModelSerializer(StrictSerializer):
    """The model endpoint that was used."""

    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.CharField()
    model = serializers.CharField()


class CallProgressSerializer(StrictSerializer):
    """The progress of a call, as reported by its server."""

    done = serializers.FloatField()
    total = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class StepSerializer(StrictSerializer):
    """One step of a session; the optional fields depend on its kind."""

    seq = serializers.IntegerField()
    kind = serializers.ChoiceField(Step.Kind.choices)
    state = serializers.ChoiceField(Step.State.choices)
    turn = serializers.IntegerField()
    index = serializers.IntegerField()
    call_id = serializers.UUIDField(allow_null=True)
    started_at = serializers.DateTimeField()
    finished_at = serializers.DateTimeField(allow_null=True)
    text = serializers.CharField(required=False)
    thinking = serializers.CharField(
        required=False, help_text="The model's readable thinking before its text."
    )
    by = serializers.CharField(required=False)
    replaces = serializers.IntegerField(
        required=False, help_text="The first of the earlier steps that this message replaces."
    )
    name = serializers.CharField(required=False)
    arguments = serializers.DictField(required=False, allow_null=True)
    server = serializers.CharField(required=False)
    tool = serializers.CharField(required=False)
    duration_ms = serializers.IntegerField(required=False)
    flagged = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text=(
            "Number of text passages of a result that look like instructions to a model, by rule."
        ),
    )
    sanitized = serializers.DictField(
        child=serializers.IntegerField(),
        required=False,
        help_text="Number of text passages of a result removed or neutralized, by rule.",
    )
    progress = CallProgressSerializer(required=False, help_text="The progress of a running call.")
    images = StepImageSerializer(many=True, required=False)
    files = StepFileSerializer(many=True, required=False)
    finish = serializers.CharField(required=False)
    endpoint = StepModelSerializer(required=False)
    wait_s = serializers.FloatField(
        required=False, help_text="Seconds before the model is called again."
    )
    usage = serializers.DictField(required=False)
    cost_microusd = serializers.IntegerField(required=False)
    answer = serializers.CharField(required=False)
    output = serializers.DictField(
        required=False, help_text="The answer as JSON, if it has an output schema."
    )
    output_schema = serializers.DictField(required=False)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)
    field = serializers.CharField(required=False)
    rule = serializers.CharField(required=False)


@extend_schema_field({"type": "object", "nullable": True, "additionalProperties": True})
class OutputSchemaField(serializers.DictField):
    """An output schema; null and an empty one mean none."""

    def __init__(self, **options: Any) -> None:
        """Allow null."""
        options.setdefault("help_text", OUTPUT_SCHEMA_HELP)
        super().__init__(allow_null=True, **options)

    def to_internal_value(self, data: Any) -> Any:
        """Return the schema unchanged, as an object; its parts are checked by the service."""
        if not isinstance(data, dict):
            self.fail("not_a_dict", input_type=type(data).__name__)
        return data

    def to_representation(self, value: Any) -> Any:
        return value or None


class AttachmentBody(StrictSerializer):
    """A file attached to a message."""

    name = serializers.CharField(max_length=255)
    content = serializers.CharField(
        trim_whitespace=False,
        help_text=(
            f"Base64 of an image (PNG, JPEG, GIF, WebP; {MAX_IMAGE_BYTES:,} bytes at "
            f"most), of a text in UTF-8 ({MAX_TEXT_BYTES:,} bytes at most), or of a PDF file "
            f"({MAX_PDF_BYTES:,} bytes and {MAX_PDF_PAGES} pages at most) if the agent's model "
            "endpoint has `pdf_input`."
        ),
    )


@extend_schema_serializer(examples=[OpenApiExample("A message", {"message": EXAMPLE_MESSAGE})])
class MessageBody(StrictSerializer):
    """A message for an agent."""

    message = serializers.CharField(
        max_length=MAX_MESSAGE_LENGTH, trim_whitespace=False, allow_blank=True
    )
    attachments = AttachmentBody(
        many=True,
        required=False,
        help_text=f"At most {MAX_ATTACHMENTS}; the size of the body is limited.",
    )
    output_schema = OutputSchemaField(
        required=False,
        help_text=f"{OUTPUT_SCHEMA_HELP} For this message, instead of the agent's.",
    )


@extend_schema_serializer(
    examples=[
        OpenApiExample("Resend the last message", {}),
        OpenApiExample("Replace an earlier message", {"seq": 5, "message": EXAMPLE_MESSAGE}),
    ]
)
class ResendMessageBody(StrictSerializer):
    """A message to resend or replace."""

    seq = serializers.IntegerField(
        required=False,
        min_value=1,
        help_text="Number of the message's step. Default: the last message.",
    )
    message = serializers.CharField(
        required=False,
        max_length=MAX_MESSAGE_LENGTH,
        trim_whitespace=False,
        allow_blank=True,
        help_text="The new text. Default: the current text.",
    )
    attachments = AttachmentBody(
        many=True, required=False, help_text="Added to the message's current attachments."
    )
