"""URLs of the REST API of notifications."""

from django.urls import path

from bonobot.notifications.api import views as api_views

DETAIL_PATH = "notice-channels/<str:channel_id>"

urlpatterns = [
    path(
        "notice-channels", api_views.NotificationChannelListView.as_view(), name="notice-channels"
    ),
    path(DETAIL_PATH, api_views.NotificationChannelDetailView.as_view(), name="notice-channel"),
    path(
        f"{DETAIL_PATH}/test",
        api_views.TestNotificationChannelView.as_view(),
        name="notice-channel-test",
    ),
    path("notices", api_views.NotificationListView.as_view(), name="notices"),
    path(
        "notices/<str:notice_id>/retry",
        api_views.RetryNotificationView.as_view(),
        name="notice-retry",
    ),
]
