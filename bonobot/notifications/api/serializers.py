"""Serializers of channels and notifications."""

from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers

from bonobot.core.api.serializers import StrictSerializer, VersionedBody, VersionedSerializer
from bonobot.core.text.masking import MASK
from bonobot.notifications.events import EVENTS, SELECTABLE_EVENTS
from bonobot.notifications.models import SEVERITIES, Notification, NotificationChannel
from bonobot.notifications.services import MAX_ADDRESSES

EVENTS_HELP = "What it is told of; empty: everything."


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "E-mail",
            {"name": "Operations", "kind": "email", "addresses": ["ops@example.com"]},
            request_only=True,
        ),
        OpenApiExample(
            "Webhook, grave things only",
            {
                "name": "Pager",
                "kind": "webhook",
                "url": "https://hooks.example.com/bonobot",
                "events": ["server_down", "needs_reauth"],
                "minimum": "critical",
            },
            request_only=True,
        ),
    ]
)
class NotificationChannelBody(VersionedBody):
    """A channel as it is written."""

    name = serializers.CharField(max_length=255)
    kind = serializers.ChoiceField(NotificationChannel.Kind.choices)
    addresses = serializers.ListField(
        child=serializers.CharField(max_length=320),
        required=False,
        max_length=MAX_ADDRESSES,
        help_text="Of a channel by e-mail.",
    )
    url = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=2_000,
        help_text=f"Of a webhook; kept when left out or `{MASK}`.",
    )
    secret = serializers.CharField(
        required=False,
        allow_blank=True,
        max_length=1_000,
        write_only=True,
        help_text="Signs what a webhook gets; left out, one is made and answered once.",
    )
    allow_private = serializers.BooleanField(
        required=False, help_text="Only a platform administrator may allow a private address."
    )
    events = serializers.ListField(
        child=serializers.ChoiceField(SELECTABLE_EVENTS), required=False, help_text=EVENTS_HELP
    )
    minimum = serializers.ChoiceField(SEVERITIES, required=False, help_text="Least severity.")
    enabled = serializers.BooleanField(required=False)


class NotificationChannelSerializer(VersionedSerializer):
    """A channel as it is read; a webhook's address shows its origin alone."""

    body_classes = (NotificationChannelBody,)

    id = serializers.UUIDField()
    name = serializers.CharField()
    kind = serializers.ChoiceField(NotificationChannel.Kind.choices)
    addresses = serializers.ListField(child=serializers.CharField())
    url = serializers.SerializerMethodField(help_text=f"`{MASK}`, or blank if there is none.")
    goes_to = serializers.CharField(help_text="Where it leads, without what is secret.")
    allow_private = serializers.BooleanField()
    events = serializers.ListField(
        child=serializers.ChoiceField(SELECTABLE_EVENTS), help_text=EVENTS_HELP
    )
    minimum = serializers.ChoiceField(SEVERITIES)
    enabled = serializers.BooleanField()
    created_at = serializers.DateTimeField()
    updated_at = serializers.DateTimeField()

    @extend_schema_field(str)
    def get_url(self, channel: NotificationChannel) -> str:
        """Return the mask, or nothing."""
        return MASK if channel.url else ""


class NotificationChannelSecretSerializer(NotificationChannelSerializer):
    """A channel just made or changed."""

    secret = serializers.SerializerMethodField(
        help_text="The signing secret, if one was made for it now; it is never answered again."
    )

    @extend_schema_field(str)
    def get_secret(self, channel: NotificationChannel) -> str:
        """Return the secret that was made up, or nothing."""
        generated_secret: Any = self.context["made"]
        return str(generated_secret)


class NotificationSubjectSerializer(StrictSerializer):
    """What a notice is about."""

    type = serializers.CharField(source="subject_type")
    id = serializers.CharField(source="subject_id")
    name = serializers.CharField(source="subject_name")


class NotificationSerializer(StrictSerializer):
    """One thing that one channel is told."""

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
    error = serializers.CharField(help_text="What went wrong at the last attempt.")
    created_at = serializers.DateTimeField()
