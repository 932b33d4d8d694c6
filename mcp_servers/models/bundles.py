"""The model of uploaded MCP bundles."""

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel


class ServerBundle(OrganizationModel):
    """An uploaded bundle (`.mcpb`): the archive and the digest of its unpacked files.

    Servers name it by `digest`, the SHA-256 of the archive, which never changes. It is unpacked on
    each host before its first start.
    """

    digest = models.CharField(max_length=64)
    tree_digest = models.CharField(max_length=64)
    name = models.CharField(_("name"), max_length=100)
    version = models.CharField(_("version"), max_length=100)
    content = models.BinaryField()

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=("organization", "digest"), name="one_bundle_by_digest"),
        )
        verbose_name = _("MCP bundle")
        verbose_name_plural = _("MCP bundles")

    def __str__(self) -> str:
        return f"{self.name} {self.version}"
