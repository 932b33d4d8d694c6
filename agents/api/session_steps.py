"""How REST shows the steps of a session."""

from rest_framework import serializers

from agents.models import Step
from bonobot.core.api.serializers import StrictSerializer


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
