"""App configuration, label `notices`."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class NotificationsConfig(AppConfig):
    """Channels, and the outbox of what goes through them."""

    name = "bonobot.notifications"
    label = "notices"
    verbose_name = _("Notices")
    default_auto_field = "django.db.models.BigAutoField"
