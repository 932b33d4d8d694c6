"""Models of skills and their versions."""

from typing import Any, ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from agents.models.agents import can_see_all_agents, filter_by_visible_agents
from bonobot.accounts.models.abstract_models import (
    GovernedModel,
    GovernedQuerySet,
    OrganizationModel,
)
from bonobot.accounts.principals import Principal

# The texts that people write, in every interface, with their maximum lengths.
SKILL_TEXTS = {"title": 255, "description": 500, "text": 32_000}


class SkillQuerySet(GovernedQuerySet):
    """Filters for skills."""

    def usable_by(self, principal: Principal) -> "SkillQuerySet":
        """Keep enabled skills that a principal may use: all for readers, else their agents'."""
        visible = filter_by_visible_agents(
            self.filter(enabled=True), principal, "assignments__agent"
        )
        usable: SkillQuerySet = visible if can_see_all_agents(principal) else visible.distinct()
        return usable

    def visible_to(self, principal: Principal) -> "SkillQuerySet":
        """Keep skills that a principal may read: for readers, disabled ones, too."""
        if can_see_all_agents(principal):
            return self.for_organization(principal.organization_id)
        return self.usable_by(principal)


class Skill(GovernedModel):
    """Named instructions with declared arguments.

    `text` references the arguments as `${name}`. `arguments` are JSON: `name`, `description`,
    `required`, `default`, `choices`. `version` counts changes, `digest` is over the content.
    """

    name = models.SlugField(_("name"), max_length=64)
    title = models.CharField(_("title"), max_length=SKILL_TEXTS["title"], blank=True, default="")
    description = models.CharField(
        _("description"), max_length=SKILL_TEXTS["description"], blank=True, default=""
    )
    text = models.TextField(_("instructions"), max_length=SKILL_TEXTS["text"])
    arguments = models.JSONField(_("arguments"), default=list, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    version = models.PositiveIntegerField(_("version"), default=1)
    digest = models.CharField(max_length=64)

    objects: ClassVar = SkillQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("skill")
        verbose_name_plural = _("skills")
        constraints = (models.UniqueConstraint(fields=["organization", "name"], name="skill_name"),)

    def __str__(self) -> str:
        return self.title or self.name

    def to_payload(self) -> dict[str, Any]:
        """Return the content that is digested and stored in versions."""
        names = ("name", "title", "description", "text", "arguments")
        return {name: getattr(self, name) for name in names}


class SkillVersion(OrganizationModel):
    """One version of a skill."""

    skill = models.ForeignKey(Skill, on_delete=models.CASCADE, related_name="versions")
    number = models.PositiveIntegerField()
    digest = models.CharField(max_length=64)
    payload = models.JSONField()
    created_by = models.CharField(max_length=255, db_column="made_by")

    class Meta:
        ordering = ("-number",)
        verbose_name = _("skill version")
        verbose_name_plural = _("skill versions")
        constraints = (
            models.UniqueConstraint(fields=["skill", "number"], name="skill_version_once"),
        )

    def __str__(self) -> str:
        return f"{self.skill} {self.number}"
