"""The model of unfinished imports."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel
from bonobot.core.crypto.encrypted_fields import SealedJSONField


class ImportDraft(OrganizationModel):
    """A pasted text and what was entered for its servers, until they are added.

    `principal` is the only one who can open it. The content is encrypted, as it contains the
    credentials of the text; `import_drafts` reads, writes and deletes it.
    """

    principal = models.CharField(max_length=300)
    content = SealedJSONField(remembered=False)

    class Meta:
        verbose_name = _("import draft")
        verbose_name_plural = _("import drafts")

    def __str__(self) -> str:
        return f"{self.pk}"
