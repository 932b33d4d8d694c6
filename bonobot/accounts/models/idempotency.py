"""StoredResponse: the stored response to a request with an `Idempotency-Key`."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedTextField


class StoredResponse(OrganizationModel):
    """The first response to a write with an `Idempotency-Key`, kept for a day.

    `status` is null while the first request runs, and stays so if its process dies: such a request
    is never repeated. The body is encrypted, as it may contain a new token.
    """

    principal = models.CharField(max_length=300)
    key = models.CharField(max_length=255)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = SealedTextField(
        blank=True, default="", remembered=False, label="tenancy.keptanswer.body"
    )

    class Meta:
        db_table = "tenancy_keptanswer"
        verbose_name = _("stored response")
        verbose_name_plural = _("stored responses")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "principal", "key"], name="answer_once_per_key"
            ),
        )
        indexes = (models.Index(fields=["organization", "created_at"], name="answer_by_age"),)

    def __str__(self) -> str:
        return f"{self.key}: {self.status or 'no answer yet'}"
