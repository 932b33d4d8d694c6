"""Issuer: an external issuer whose tokens the gateway accepts."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel, GovernedQuerySet
from bonobot.accounts.roles import ROLE_CHOICES, Role


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
        help_text=_("The issuer's URL, exactly as in the claim iss of its tokens."),
    )
    audience = models.CharField(
        _("audience"),
        max_length=512,
        blank=True,
        default="",
        help_text=_("Required value in aud. If empty, the exact URL that the token is used at."),
    )
    subject_claim = models.CharField(_("subject claim"), max_length=255, default="sub")
    label_claim = models.CharField(
        _("name claim"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("Shown in the audit log, such as email. If empty, the subject is shown."),
    )
    role = models.CharField(
        _("role"),
        max_length=16,
        choices=ROLE_CHOICES,
        blank=True,
        default=Role.MEMBER,
        help_text=_("For users without a role from a claim. If empty, they have no access."),
    )
    role_claim = models.CharField(
        _("role claim"),
        max_length=255,
        blank=True,
        default="",
        help_text=_("Its values are mapped to roles below. Use a dot to reach a nested field."),
    )
    roles = models.JSONField(_("roles by claim value"), default=dict, blank=True)
    scope_claim = models.CharField(
        _("scopes claim"),
        max_length=255,
        blank=True,
        default="scope",
        help_text=_("If empty, every token has all scopes allowed here."),
    )
    scopes = models.JSONField(_("scopes"), default=list, blank=True)
    agent_ids = models.JSONField(_("only for agents"), default=list, blank=True)
    calls_per_minute = models.PositiveIntegerField(_("calls per minute"), null=True, blank=True)
    any_type = models.BooleanField(
        _("accept tokens of type JWT"),
        default=False,
        help_text=_("For issuers that don't mark access tokens with the type at+jwt."),
    )
    allow_private = models.BooleanField(
        _("allow private address"),
        default=False,
        help_text=_("Also allows http."),
    )
    announced = models.BooleanField(
        _("advertised to clients"),
        default=True,
        help_text=_("Whether Bonobot's public metadata names it."),
    )
    enabled = models.BooleanField(_("enabled"), default=True)

    objects: ClassVar = IssuerQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("external issuer")
        verbose_name_plural = _("external issuers")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(role__in=["", *(role.value for role in Role)]),
                name="issuer_role",
            ),
        )

    def __str__(self) -> str:
        return self.name
