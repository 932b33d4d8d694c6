"""REST views of channels and notifications."""

from dataclasses import replace

import django_filters
from rest_framework.response import Response

from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.roles import Action
from bonobot.core.api.filters import StrictFilterSet
from bonobot.notifications import delivery
from bonobot.notifications.api.serializers import (
    NotificationChannelBody,
    NotificationChannelSecretSerializer,
    NotificationChannelSerializer,
    NotificationSerializer,
)
from bonobot.notifications.channels import (
    NotificationChannelSpec,
    build_spec,
    delete_channel,
    save_channel,
)
from bonobot.notifications.delivery import send_test_notification
from bonobot.notifications.events import EVENTS
from bonobot.notifications.models import Notification, NotificationChannel


class NotificationChannelListView(ResourceView):
    """All notification channels."""

    rules = {"GET": Action.VIEW_AUDIT, "POST": Action.MANAGE_NOTICES}
    ordering = ("name", "pk")
    orderings = ("name", "kind", "created_at", "updated_at")

    @describe_operation(
        "list_notification_channels", answer=NotificationChannelSerializer(many=True)
    )
    def get(self, request: object) -> Response:
        """List notification channels."""
        return self.respond_page(
            NotificationChannel.objects.for_organization(self.organization_id),
            NotificationChannelSerializer,
        )

    @describe_operation(
        "create_notification_channel",
        body=NotificationChannelBody,
        answer=NotificationChannelSecretSerializer,
        status=201,
    )
    def post(self, request: object) -> Response:
        """Create a notification channel: email addresses, or a webhook.

        A webhook receives signed JSON. If no secret is sent, one is generated and returned in this
        response only.
        """
        channel, generated_secret = save_channel(
            self.principal, NotificationChannelSpec(**self.read_body(NotificationChannelBody))
        )
        return self.respond_row(
            channel, NotificationChannelSecretSerializer, status=201, made=generated_secret
        )


class NotificationChannelView(ResourceView):
    """Base class of the views of one channel."""

    def get_channel(self, channel_id: str) -> NotificationChannel:
        """Return a channel of the organization; raises `NotFound`."""
        return self.get_row(NotificationChannel, channel_id=channel_id)


class NotificationChannelDetailView(NotificationChannelView):
    """One notification channel."""

    rules = {
        "GET": Action.VIEW_AUDIT,
        "PATCH": Action.MANAGE_NOTICES,
        "DELETE": Action.MANAGE_NOTICES,
    }

    @describe_operation("get_notification_channel", answer=NotificationChannelSerializer)
    def get(self, request: object, channel_id: str) -> Response:
        """Get a notification channel; a webhook's URL and secret are masked."""
        return self.respond_row(self.get_channel(channel_id), NotificationChannelSerializer)

    @describe_operation(
        "update_notification_channel",
        body=NotificationChannelBody,
        answer=NotificationChannelSecretSerializer,
    )
    def patch(self, request: object, channel_id: str) -> Response:
        """Update a notification channel; disabling it discards its pending notifications."""
        channel = self.get_channel(channel_id)
        body = self.read_body(NotificationChannelBody, partial=True)
        spec = replace(build_spec(channel), **body)
        channel, generated_secret = save_channel(self.principal, spec, channel)
        return self.respond_row(channel, NotificationChannelSecretSerializer, made=generated_secret)

    @describe_operation("delete_notification_channel", status=204)
    def delete(self, request: object, channel_id: str) -> Response:
        """Delete a notification channel with its notifications."""
        delete_channel(self.principal, self.get_channel(channel_id))
        return Response(status=204)


class TestNotificationChannelView(NotificationChannelView):
    """Test of a channel."""

    __test__ = False
    rules = {"POST": Action.MANAGE_NOTICES}

    @describe_operation("test_notification_channel", answer=NotificationSerializer)
    def post(self, request: object, channel_id: str) -> Response:
        """Send a test notification.

        If the destination doesn't accept it, the status code is still 200. The response has the
        state `failed` and the error.
        """
        return self.respond_row(
            send_test_notification(self.principal, self.get_channel(channel_id)),
            NotificationSerializer,
        )


class NotificationFilter(StrictFilterSet):
    """Filters for the list of notifications."""

    channel = django_filters.UUIDFilter(field_name="channel_id", label="ID of the channel")
    state = django_filters.ChoiceFilter(choices=Notification.State.choices)
    event = django_filters.ChoiceFilter(choices=[(code, code) for code in EVENTS])
    subject = django_filters.CharFilter(field_name="subject_id", label="ID of the subject")
    since = django_filters.IsoDateTimeFilter(field_name="created_at", lookup_expr="gte")


class NotificationListView(ResourceView):
    """The notifications of the organization."""

    rules = {"GET": Action.VIEW_AUDIT}
    queryset = Notification.objects.none()
    filterset_class = NotificationFilter
    orderings = ("created_at", "severity", "state")

    @describe_operation("list_notifications", answer=NotificationSerializer(many=True))
    def get(self, request: object) -> Response:
        """List the notifications of the last 30 days, newest first."""
        rows = Notification.objects.for_organization(self.organization_id).select_related("channel")
        return self.respond_page(rows, NotificationSerializer)


class RetryNotificationView(ResourceView):
    """Retry of a notification."""

    rules = {"POST": Action.MANAGE_NOTICES}

    @describe_operation("retry_notification", answer=NotificationSerializer)
    def post(self, request: object, notification_id: str) -> Response:
        """Retry a pending or failed notification now."""
        rows = Notification.objects.select_related("channel")
        notification = self.get_row(Notification, rows, notification_id=notification_id)
        delivery.retry_notification(self.principal, notification)
        return self.respond_row(notification, NotificationSerializer)
