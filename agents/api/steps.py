"""The steps of a session as programs get them."""

from rest_framework import serializers

from agents.models import Step
from bonobot.tenancy.api.shapes import Shape


class ImageShape(Shape):
    """An image of a step, which `/images/{sha256}` shows."""

    sha256 = serializers.CharField()
    media_type = serializers.CharField()
    size = serializers.IntegerField(help_text="Bytes.")
    name = serializers.CharField(required=False, help_text="Where a person attached it.")


class FileShape(ImageShape):
    """A text that a person attached, which `/files/{sha256}` shows."""


class AskedShape(Shape):
    """The model endpoint that was asked."""

    id = serializers.CharField()
    name = serializers.CharField()
    kind = serializers.CharField()
    model = serializers.CharField()


class CallProgressShape(Shape):
    """How far a call has come, as its server says."""

    done = serializers.FloatField()
    total = serializers.FloatField(allow_null=True)
    message = serializers.CharField()


class StepShape(Shape):
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
    progress = CallProgressShape(required=False, help_text="How far a running call has come.")
    images = ImageShape(many=True, required=False)
    files = FileShape(many=True, required=False)
    finish = serializers.CharField(required=False)
    endpoint = AskedShape(required=False)
    wait_s = serializers.FloatField(required=False, help_text="Before a model is asked again.")
    usage = serializers.DictField(required=False)
    cost_microusd = serializers.IntegerField(required=False)
    answer = serializers.CharField(required=False)
    code = serializers.CharField(required=False)
    detail = serializers.CharField(required=False)
    remedy = serializers.CharField(required=False)
    field = serializers.CharField(required=False)
    rule = serializers.CharField(required=False)
