"""FactorSecret and Attempts: second factors, and how often what can be guessed was tried."""

import uuid

from django.db import models

from bonobot.core.crypto.encrypted_fields import SealedTextField


class FactorSecret(models.Model):
    """A secret of a person's second factor: what one-time codes or recovery codes are made from."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    user = models.ForeignKey("tenancy.User", on_delete=models.CASCADE, related_name="+")
    secret = SealedTextField(remembered=False)
    organization_id = models.UUIDField(null=True, editable=False)  # none: people are the platform's

    def __str__(self) -> str:
        return f"of {self.user_id}"


class Attempts(models.Model):
    """How far something that is guessed at has used its rate up: one number (see `lib.rates`)."""

    key = models.CharField(max_length=64, primary_key=True)
    tat = models.BigIntegerField(db_index=True)  # microseconds since 1970

    def __str__(self) -> str:
        return self.key
