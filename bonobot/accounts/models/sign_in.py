"""FactorSecret and Attempts: secrets of second factors, and rate limits of attempts."""

import uuid

from django.db import models

from bonobot.core.crypto.encrypted_fields import SealedTextField


class FactorSecret(models.Model):
    """An encrypted secret of a user's second factor."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey("tenancy.User", on_delete=models.CASCADE, related_name="+")
    secret = SealedTextField(remembered=False)
    organization_id = models.UUIDField(null=True, editable=False)  # null: users have no tenant

    def __str__(self) -> str:
        return f"of {self.user_id}"


class Attempts(models.Model):
    """The GCRA state of one rate limit and subject (see `bonobot.core.rate_limiter`)."""

    key = models.CharField(max_length=64, primary_key=True)
    tat = models.BigIntegerField(db_index=True)  # microseconds since 1970

    def __str__(self) -> str:
        return self.key
