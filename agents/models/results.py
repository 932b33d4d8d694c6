"""StoredResult: the whole of a call's result that was too long for the model."""

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
