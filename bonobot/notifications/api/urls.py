"""URLs of the REST API of notifications."""

from django.urls import path

from bonobot.notifications.api import views as api_views

DETAIL_PATH = "notification-channels/<str:channel_id>"

urlpatterns = [
    path(
        "notification-channels",
        api_views.NotificationChannelListView.as_view(),
        name="notification-channels",
    ),
    path(
        DETAIL_PATH, api_views.NotificationChannelDetailView.as_view(), name="notification-channel"
    ),
    path(
        f"{DETAIL_PATH}/test",
        api_views.TestNotificationChannelView.as_view(),
        name="notification-channel-test",
    ),
    path("notifications", api_views.NotificationListView.as_view(), name="notifications"),
    path(
        "notifications/<str:notification_id>/retry",
        api_views.RetryNotificationView.as_view(),
        name="notification-retry",
    ),
]
