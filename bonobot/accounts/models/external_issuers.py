"""Issuer: an external issuer whose tokens the gateway accepts."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel, GovernedQuerySet
from bonobot.accounts.role_labels import ROLE_CHOICES
from bonobot.accounts.roles import Role


class IssuerQuerySet(GovernedQuerySet):
    """Issuers by their state."""

    def enabled(self) -> "IssuerQuerySet":
        """Keep those whose tokens are accepted."""
        return self.filter(enabled=True)


class Issuer(GovernedModel):
    """An external authorization server whose tokens the gateway accepts (RFC 9068).

    `scopes`, `agent_ids` and `role` limit what the claims of its tokens can ask for. An issuer
    belongs to one organization, so its tokens need not name one.
    """

    name = models.CharField(_("name"), max_length=255)
    url = models.CharField(
        _("issuer"),
        max_length=512,
        unique=True,
        help_text=_("Letter by letter as its tokens have it in iss."),
    )
    audience = models.CharField(
        _("audience"),
        max_length=512,
        blank=True,
        default="",
        help_text=_("What aud must contain; empty: the very address that a token is used at."),
    )
    subject_claim = models.CharField(_("claim of the subject"), max_length=255, default="sub")
    label_claim = models.CharField(
        _("claim of the name"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("What the audit shows, like email; empty: the subject."),
    )
    role = models.CharField(
        _("role"),
        max_length=16,
        choices=ROLE_CHOICES,
        blank=True,
        default=Role.MEMBER,
        help_text=_("Of whoever no claim gives one; empty: they are not let in."),
    )
    role_claim = models.CharField(
        _("claim of the role"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("Its values are looked up below; a member is reached by a dot."),
    )
    roles = models.JSONField(_("roles by value"), default=dict, blank=True)
    scope_claim = models.CharField(
        _("claim of the scopes"),
        max_length=255,
        blank=True,
        default="scope",
        help_text=_("Empty: each token has all the scopes that are allowed here."),
    )
    scopes = models.JSONField(_("scopes"), default=list, blank=True)
    agent_ids = models.JSONField(_("only for agents"), default=list, blank=True)
    calls_per_minute = models.PositiveIntegerField(_("calls a minute"), null=True, blank=True)
    any_type = models.BooleanField(
        _("takes tokens of the type JWT"),
        default=False,
        help_text=_("For issuers that do not mark access tokens as such (at+jwt)."),
    )
    allow_private = models.BooleanField(
        _("may be at a private address"),
        default=False,
        help_text=_("Then http is allowed, too."),
    )
    announced = models.BooleanField(
        _("told to clients"),
        default=True,
        help_text=_("Whether the metadata of our addresses names it, to anybody who asks."),
    )
    enabled = models.BooleanField(_("enabled"), default=True)

    objects: ClassVar = IssuerQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("issuer of tokens")
        verbose_name_plural = _("issuers of tokens")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(role__in=["", *(role.value for role in Role)]),
                name="issuer_role",
            ),
        )

    def __str__(self) -> str:
        return self.name
