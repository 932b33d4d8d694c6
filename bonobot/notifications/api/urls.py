"""URLs of the REST API of notifications."""

from bonobot.accounts.api.resource_view import build_url_patterns
from bonobot.notifications.api import views as api_views

DETAIL_PATH = "notification-channels/<str:channel_id>"

urlpatterns = build_url_patterns(
    {
        "notification-channels": api_views.NotificationChannelListView,
        DETAIL_PATH: api_views.NotificationChannelDetailView,
        f"{DETAIL_PATH}/test": api_views.TestNotificationChannelView,
        "notifications": api_views.NotificationListView,
        "notifications/<str:notification_id>/retry": api_views.RetryNotificationView,
    }
)
