"""Serializers of channels and notifications."""

from typing import Any

from drf_spectacular.utils import extend_schema_field
from rest_framework import serializers

from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from bonobot.core.text.masking import MASK
from bonobot.notifications.channels import MAX_ADDRESSES
from bonobot.notifications.events import EVENTS, SELECTABLE_EVENTS
from bonobot.notifications.models import SEVERITIES, Notification, NotificationChannel

EVENTS_HELP = "The events to send; empty: all events."


class NotificationChannelBody(VersionedBody):
    """A notification channel to create or update."""

    name = serializers.CharField(max_length=255)
    kind = serializers.ChoiceField(NotificationChannel.Kind.choices)
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=320),
        required=False,
        max_length=MAX_ADDRESSES,
        help_text="For an email channel.",
    )
    url = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=2_000,
        help_text=f"For a webhook; unchanged if omitted or `{MASK}`.",
    )
    secret = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=1_000,
        write_only=True,
        help_text=(
            "Signs the requests of a webhook. If omitted, a secret is generated and returned once."
        ),
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator can allow a private address."
    )
    events = serializers.ListField(
        child=serializers.ChoiceField(SELECTABLE_EVENTS), required=False, help_text=EVENTS_HELP
    )
    minimum_severity = serializers.ChoiceField(
        SEVERITIES, required=False, help_text="Minimum severity."
    )
    enabled = serializers.BooleanField(required=False)


class NotificationChannelSerializer(VersionedSerializer):
    """A notification channel; only the origin of a webhook's URL is shown."""

    body_classes = (NotificationChannelBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(NotificationChannel.Kind.choices)
    addresses = serializers.ListField(child=serializers.CharField())
    url = serializers.SerializerMethodField(help_text=f"`{MASK}`, or empty if there is none.")
    destination = serializers.CharField(help_text="The destination, without secrets.")
    goes_to = serializers.CharField(
        source="destination",
        help_text="The earlier name of `destination`; the next release removes it.",
    )
    allow_private = serializers.BooleanField()
    events = serializers.ListField(
        child=serializers.ChoiceField(SELECTABLE_EVENTS), help_text=EVENTS_HELP
    )
    minimum_severity = serializers.ChoiceField(SEVERITIES)
    enabled = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    @extend_schema_field(str)
    def get_url(self, channel: NotificationChannel) -> str:
        """Return the mask, or nothing."""
        return MASK if channel.url else ""


class NotificationChannelSecretSerializer(NotificationChannelSerializer):
    """A notification channel that was created or updated."""

    secret = serializers.SerializerMethodField(
        help_text="The signing secret, if one was generated; it isn't shown again."
    )

    @extend_schema_field(str)
    def get_secret(self, channel: NotificationChannel) -> str:
        """Return the secret that was made up, or nothing."""
        generated_secret: Any = self.context["made"]
        return str(generated_secret)


class NotificationSubjectSerializer(StrictSerializer):
    """The subject of a notification."""

    type = serializers.CharField(source="subject_type")
    id = serializers.CharField(source="subject_id")
    name = serializers.CharField(source="subject_name")


class NotificationSerializer(StrictSerializer):
    """A notification for one channel."""

    id = serializers.UUIDField(help_text="Sent to webhooks as `id` and `Idempotency-Key`.")
    channel_id = serializers.UUIDField()
    channel_name = serializers.CharField(source="channel.name")
    event = serializers.ChoiceField(tuple(EVENTS))
    severity = serializers.ChoiceField(SEVERITIES)
    subject = NotificationSubjectSerializer(source="*")
    text = serializers.CharField()
    state = serializers.ChoiceField(Notification.State.choices)
    attempts = serializers.IntegerField()
    next_attempt_at = serializers.DateTimeField(allow_null=True)
    sent_at = serializers.DateTimeField(allow_null=True)
    error = serializers.CharField(help_text="The error of the last attempt.")
    created_at = serializers.DateTimeField()
