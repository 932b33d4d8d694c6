"""StoredResult and Blob: what is too long, or no text, for a step."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import OrganizationModel


class StoredResult(OrganizationModel):
    """A result kept whole; its id is the call's id. The model reads on with `read_result`."""

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, null=True, related_name="+")
    session_id = models.UUIDField(null=True, db_index=True)
    text = models.TextField()

    class Meta:
        verbose_name = _("stored result")
        verbose_name_plural = _("stored results")

    def __str__(self) -> str:
        return str(self.pk)


class Blob(OrganizationModel):
    """An image, or a text that somebody attached: kept once for an organization by its digest."""

    sha256 = models.CharField(max_length=64)
    media_type = models.CharField(max_length=32)
    size = models.PositiveIntegerField()
    data = models.BinaryField()

    class Meta:
        verbose_name = _("kept file")
        verbose_name_plural = _("kept files")
        constraints = (
            models.UniqueConstraint(fields=["organization", "sha256"], name="blob_once"),
        )

    def __str__(self) -> str:
        return self.sha256
