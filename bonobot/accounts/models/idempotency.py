"""KeptAnswer: the stored answer of a request with an `Idempotency-Key`."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedTextField


class KeptAnswer(OrganizationModel):
    """The first answer to a write that carried an `Idempotency-Key`, kept for a day.

    `status` stays empty while the first request runs, or for ever when its process died in between:
    such a request is never repeated. The body is sealed, since a new token's text may be in it.
    """

    principal = models.CharField(max_length=300)
    key = models.CharField(max_length=255)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = SealedTextField(blank=True, default="", remembered=False)

    class Meta:
        verbose_name = _("kept answer")
        verbose_name_plural = _("kept answers")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "principal", "key"], name="answer_once_per_key"
            ),
        )
        indexes = (models.Index(fields=["organization", "created_at"], name="answer_by_age"),)

    def __str__(self) -> str:
        return f"{self.key}: {self.status or 'no answer yet'}"
