"""Channels: where the organization's people are told."""

from typing import Any

from rest_framework.response import Response

from bonobot.notices.api.shapes import (
    NoticeChannelBody,
    NoticeChannelMadeShape,
    NoticeChannelShape,
    NoticeShape,
)
from bonobot.notices.channels import ChannelSpec, remove_channel, save_channel
from bonobot.notices.delivering import send_test
from bonobot.notices.models import Channel
from bonobot.tenancy.api.resources import Resource, named_in_path
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.roles import Action

KEPT = ("name", "kind", "addresses", "allow_private", "events", "minimum", "enabled")


class NoticeChannels(Resource):
    """All channels."""

    rules = {"GET": Action.VIEW_AUDIT, "POST": Action.MANAGE_NOTICES}
    ordering = ("name", "pk")
    orderings = ("name", "kind", "created_at", "updated_at")

    @operation("list_notice_channels", answer=NoticeChannelShape(many=True))
    def get(self, request: object) -> Response:
        """List the channels by which people are told."""
        return self.listed(
            Channel.objects.for_organization(self.organization_id), NoticeChannelShape
        )

    @operation(
        "add_notice_channel", body=NoticeChannelBody, answer=NoticeChannelMadeShape, status=201
    )
    def post(self, request: object) -> Response:
        """Make a channel: e-mail addresses, or a webhook.

        A webhook gets signed JSON. Where no secret is sent one is made, and answered this once.
        """
        channel, made = save_channel(self.principal, ChannelSpec(**self.read(NoticeChannelBody)))
        return self.shown(channel, NoticeChannelMadeShape, status=201, made=made)


class OneChannel(Resource):
    """What has a channel in its address."""

    def channel(self, channel_id: str) -> Channel:
        """Return a channel of the organization; raises `NotFound`."""
        with named_in_path("channel_id"):
            found: Channel = Channel.objects.get_or_404(self.organization_id, pk=channel_id)
        return found


class OneNoticeChannel(OneChannel):
    """One channel."""

    rules = {
        "GET": Action.VIEW_AUDIT,
        "PATCH": Action.MANAGE_NOTICES,
        "DELETE": Action.MANAGE_NOTICES,
    }

    @operation("get_notice_channel", answer=NoticeChannelShape)
    def get(self, request: object, channel_id: str) -> Response:
        """Show a channel; a webhook's address and secret are never shown."""
        return self.shown(self.channel(channel_id), NoticeChannelShape)

    @operation("change_notice_channel", body=NoticeChannelBody, answer=NoticeChannelMadeShape)
    def patch(self, request: object, channel_id: str) -> Response:
        """Change parts of a channel; switched off, it forgets what waits for it."""
        channel = self.channel(channel_id)
        kept: dict[str, Any] = {name: getattr(channel, name) for name in KEPT}
        spec = ChannelSpec(**(kept | self.read(NoticeChannelBody, partial=True)))
        channel, made = save_channel(self.principal, spec, channel)
        return self.shown(channel, NoticeChannelMadeShape, made=made)

    @operation("remove_notice_channel", status=204)
    def delete(self, request: object, channel_id: str) -> Response:
        """Remove a channel with the notices that it was told."""
        remove_channel(self.principal, self.channel(channel_id))
        return Response(status=204)


class TestNoticeChannel(OneChannel):
    """A test of one channel."""

    __test__ = False
    rules = {"POST": Action.MANAGE_NOTICES}

    @operation("test_notice_channel", answer=NoticeShape)
    def post(self, request: object, channel_id: str) -> Response:
        """Send a test notice now.

        A receiver that doesn't take it is no error of this request: the answer is 200 with the
        state `failed` and what went wrong.
        """
        return self.shown(send_test(self.principal, self.channel(channel_id)), NoticeShape)
