"""Model of saved filters of the audit log."""

from django.conf import settings
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel

MAX_NAME_LENGTH = 80
MAX_QUERY_LENGTH = 2_000


class SavedFilter(OrganizationModel):
    """Filters, search and order of the audit log, as a query string.

    Private to its owner, or `shared` with all readers of the organization's audit log.
    """

    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.CASCADE, related_name="+")
    name = models.CharField(_("name"), max_length=MAX_NAME_LENGTH)
    query = models.CharField(max_length=MAX_QUERY_LENGTH)
    shared = models.BooleanField(default=False, db_default=False)

    class Meta:
        ordering = ("name", "pk")
        verbose_name = _("saved filter")
        verbose_name_plural = _("saved filters")
        constraints = (
            models.UniqueConstraint(
                fields=("organization", "owner", "name"), name="saved_filter_once"
            ),
        )

    def __str__(self) -> str:
        return self.name
