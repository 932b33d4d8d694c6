"""App configuration; the label is `notices`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class NotificationsConfig(AppConfig):
    """Notification channels and the outbox."""

    name = "bonobot.notifications"
    label = "notices"
    verbose_name = _("Notifications")
    default_auto_field = "django.db.models.BigAutoField"
