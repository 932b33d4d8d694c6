"""Where the resources of notices are, below /api/."""

from django.urls import path

from bonobot.notices.api import channels, outbox

ONE = "notice-channels/<str:channel_id>"

urlpatterns = [
    path("notice-channels", channels.NoticeChannels.as_view(), name="notice-channels"),
    path(ONE, channels.OneNoticeChannel.as_view(), name="notice-channel"),
    path(f"{ONE}/test", channels.TestNoticeChannel.as_view(), name="notice-channel-test"),
    path("notices", outbox.Notices.as_view(), name="notices"),
    path("notices/<str:notice_id>/retry", outbox.RetryNotice.as_view(), name="notice-retry"),
]
