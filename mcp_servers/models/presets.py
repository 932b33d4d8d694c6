"""Preset: a ready server entry that a person completes and adds."""

import uuid

from django.core.validators import URLValidator
from django.db import models
from django.utils.translation import gettext_lazy as _


class PresetQuerySet(models.QuerySet):
    """Presets as an organization sees them."""

    def offered_to(self, organization_id: uuid.UUID) -> "PresetQuerySet":
        """Keep platform presets and the organization's own."""
        own = models.Q(organization_id=organization_id)
        return self.filter(models.Q(organization__isnull=True) | own)


class Preset(models.Model):
    """A platform preset (no organization; loaded from the catalogue) or an organization's own.

    `endpoint_config` may hold `${PARAMETER}`; `parameters` describes each one. `proof` says why we
    believe that the server exists: a registry name with version, or the vendor's documentation.
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    organization = models.ForeignKey(
        "tenancy.Organization", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    slug = models.SlugField(_("slug"), max_length=64)
    name = models.CharField(_("name"), max_length=255)
    description = models.TextField(_("description"), blank=True, default="")
    category = models.CharField(_("category"), max_length=64, blank=True, default="")
    icon = models.CharField(_("icon"), max_length=64, blank=True, default="")
    documentation_url = models.CharField(
        _("documentation"), max_length=500, blank=True, default="", validators=[URLValidator()]
    )
    transport_type = models.CharField(_("transport"), max_length=10)
    endpoint_config = models.JSONField(_("endpoint"), default=dict)
    auth_type = models.CharField(_("sign-in"), max_length=16, default="none")
    auth_config = models.JSONField(_("sign-in details"), default=dict, blank=True)
    parameters = models.JSONField(_("parameters"), default=list, blank=True)
    proof = models.JSONField(_("proof"), default=dict, blank=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)

    objects = PresetQuerySet.as_manager()

    class Meta:
        ordering = ("category", "name")
        verbose_name = _("preset")
        verbose_name_plural = _("presets")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "slug"], name="preset_slug_in_organization"
            ),
            models.UniqueConstraint(
                fields=["slug"],
                condition=models.Q(organization__isnull=True),
                name="preset_slug_of_platform",
            ),
        )

    def __str__(self) -> str:
        return self.name
