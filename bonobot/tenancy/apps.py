"""Django's entry for the tenancy app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class TenancyConfig(AppConfig):
    """Users, organizations, roles and tokens."""

    name = "bonobot.tenancy"
    label = "tenancy"
    verbose_name = _("People and organizations")
    default_auto_field = "django.db.models.BigAutoField"
