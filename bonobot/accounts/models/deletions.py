"""Deletion: a deleted object that can still be restored."""

from datetime import timedelta
from typing import ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.core.crypto.encrypted_fields import SealedJSONField

RESTORE_PERIOD = timedelta(minutes=10)


class DeletionQuerySet(ScopedQuerySet):
    """Deletions by their age."""

    def restorable(self) -> "DeletionQuerySet":
        """Keep those whose objects can still be restored."""
        return self.filter(expires_at__gt=timezone.now())

    def expired(self) -> "DeletionQuerySet":
        """Keep those whose objects can't be restored anymore."""
        return self.filter(expires_at__lte=timezone.now())


class Deletion(OrganizationModel):
    """A deleted object with its rows, encrypted, until it can't be restored anymore.

    The object itself is gone from its tables when this row exists, so nothing has to leave it out.
    `kind` is the type of the object in the audit log, such as `agent`.
    """

    kind = models.CharField(_("type"), max_length=32)
    object_id = models.CharField(max_length=64)
    name = models.CharField(_("name"), max_length=255)
    deleted_by = models.CharField(_("deleted by"), max_length=255)
    expires_at = models.DateTimeField(_("can be restored until"), db_index=True)
    rows = SealedJSONField(remembered=False)

    objects: ClassVar = DeletionQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("deletion")
        verbose_name_plural = _("recently deleted")
        indexes = (
            models.Index(fields=["organization", "-created_at"], name="deletion_by_organization"),
        )

    def __str__(self) -> str:
        return self.name
