"""Model of presets."""

import uuid
from typing import ClassVar

from django.apps import apps
from django.core.validators import URLValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import Governed, GovernedQuerySet
from mcp_servers.presets.logos import LOGOS

STDIO = "stdio"


class PresetQuerySet(GovernedQuerySet):
    """Filters for presets."""

    def available_to(self, organization_id: uuid.UUID) -> "PresetQuerySet":
        """Keep platform presets and the organization's own."""
        is_own = models.Q(organization_id=organization_id)
        return self.filter(models.Q(organization__isnull=True) | is_own)

    def find_by_slug(self, organization_id: uuid.UUID, slug: str) -> "Preset | None":
        """Return the preset with this slug, the organization's own before the platform's."""
        available = self.available_to(organization_id).filter(slug=slug)
        return available.order_by(models.F("organization").desc(nulls_last=True)).first()

    def enabled_for(self, organization_id: uuid.UUID) -> "PresetQuerySet":
        """Keep presets that the organization may use.

        The catalog's stdio presets start programs on this host, so they have to be enabled for
        each organization; all others are always enabled.
        """
        links = Preset.enabled_for.through._default_manager
        enabled = links.filter(preset=models.OuterRef("pk"), organization=organization_id)
        needs_enabling = models.Q(organization__isnull=True, transport_type=STDIO)
        return self.filter(~needs_enabling | models.Exists(enabled))

    def from_platform(self) -> "PresetQuerySet":
        """Keep presets of the shipped catalog."""
        return self.filter(organization__isnull=True)


class Preset(Governed):
    """A platform preset (no organization; loaded from the catalog) or an organization's own.

    `endpoint_config` may contain `${PARAMETER}`, described in `parameters`. `proof` shows that the
    server exists: a package name with version, or the vendor's documentation. `resolution` is the
    last result of the registry: `state`, `detail`, `asked_at`; empty before the first check.
    `replaces` are nonexistent package names that it is an alternative for. `catalog` is the
    digest of the file that a platform row was loaded from. `labels` are the flow labels of its
    tools; policy decisions depend on them. `enabled_for` are the organizations that may use a stdio
    preset of the catalog; it is unused for other presets.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset({"resolution"})

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
    auth_type = models.CharField(_("authentication"), max_length=16, default="none")
    auth_config = models.JSONField(_("authentication settings"), default=dict, blank=True)
    sandbox = models.CharField(
        _("sandbox"), max_length=10, blank=True, default="", db_column="confinement"
    )
    network = models.CharField(_("network"), max_length=6, blank=True, default="")
    parameters = models.JSONField(_("parameters"), default=list, blank=True)
    labels = models.JSONField(_("tool labels"), default=list, blank=True)
    program = models.CharField(_("program"), max_length=100, blank=True, default="")
    replaces = models.JSONField(_("replaces"), default=list, blank=True)
    proof = models.JSONField(_("evidence"), default=dict, blank=True)
    resolution = models.JSONField(_("registry response"), default=dict, blank=True, editable=False)
    catalog = models.CharField(
        max_length=64, blank=True, default="", editable=False, db_column="catalogue"
    )
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    enabled_for = models.ManyToManyField(
        "tenancy.Organization", blank=True, editable=False, related_name="+"
    )

    objects: ClassVar = PresetQuerySet.as_manager()

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

    @property
    def logo(self) -> str:
        """The symbol of the service's logo; blank for an organization's own preset."""
        return "" if self.organization_id else LOGOS.get(self.slug, "")

    def __str__(self) -> str:
        return self.name

    @classmethod
    def list_organizations_of_rows(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        """Return the organizations with servers created from some presets (1 query)."""
        server = apps.get_model("mcp_servers", "Server")
        servers = server._default_manager.filter(preset__in=rows.order_by().values("pk"))
        return set(servers.values_list("organization_id", flat=True).distinct())

    def list_governed_organizations(self) -> set[uuid.UUID]:
        """Return the organizations with servers created from it (1 query if it is stored)."""
        if self._state.adding:
            return set()
        return self.list_organizations_of_rows(type(self)._default_manager.filter(pk=self.pk))

    @property
    def needs_enabling(self) -> bool:
        """Tell whether it has to be enabled for each organization."""
        return self.organization_id is None and self.transport_type == STDIO

    @property
    def gone(self) -> bool:
        """Tell whether its package was missing from the registry at the last check."""
        return bool(self.resolution.get("state") == "gone")
