"""The ledger as a Django app."""

from django.apps import AppConfig


class LedgerConfig(AppConfig):
    """Audit rows and heads, budget and rate cells."""

    name = "bonobot.ledger"
    label = "ledger"
    verbose_name = "Govern"
    default_auto_field = "django.db.models.BigAutoField"
