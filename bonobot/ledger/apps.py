"""The ledger as a Django app."""

from django.apps import AppConfig


class LedgerConfig(AppConfig):
    """The app config of the ledger."""

    name = "bonobot.ledger"
    label = "ledger"
    verbose_name = "Govern"
    default_auto_field = "django.db.models.BigAutoField"
