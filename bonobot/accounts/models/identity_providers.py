"""Provider and Identity: OpenID Connect identity providers and their users."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.accounts.roles import ROLE_CHOICES, Role
from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.core.db.changed_fields import SavesChangedFields


class ProviderQuerySet(ScopedQuerySet):
    """Identity providers by their state."""

    def enabled(self) -> "ProviderQuerySet":
        """Keep those that users can sign in with."""
        return self.filter(enabled=True)


class Provider(SavesChangedFields, OrganizationModel):
    """An OpenID Connect provider with which members of an organization sign in.

    A session that began there reaches no other organization, so the provider's operator gains no
    access elsewhere.
    """

    name = models.CharField(_("name"), max_length=255, help_text=_("Shown on the sign-in page."))
    url = models.CharField(
        _("issuer"),
        max_length=512,
        help_text=_("The issuer's URL, exactly as in the claim iss of its tokens."),
    )
    client_id = models.CharField(_("client ID"), max_length=255)
    client_secret = SealedTextField(_("client secret"), blank=True, default="")
    domains = models.JSONField(_("email domains"), default=list, blank=True)
    trusts_email = models.BooleanField(
        _("trust email addresses"),
        default=False,
        help_text=_("For providers that verify every email address but don't send email_verified."),
    )
    creates = models.BooleanField(
        _("create accounts"),
        default=False,
        help_text=_("Users known to the provider become members at their first sign-in."),
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
        help_text=_(
            "Such as groups. Each sign-in then sets the role. Use a dot to reach a nested field."
        ),
    )
    roles = models.JSONField(_("roles by claim value"), default=dict, blank=True)
    second_factor = models.BooleanField(
        _("require Bonobot's second factor"),
        default=False,
        help_text=_("Otherwise, the provider's sign-in counts as the second factor."),
    )
    announced = models.BooleanField(
        _("show on sign-in page"),
        default=True,
        help_text=_("Shows its name to everyone. Otherwise, people need its URL."),
    )
    allow_private = models.BooleanField(
        _("allow private address"),
        default=False,
        help_text=_("Also allows http."),
    )
    enabled = models.BooleanField(_("enabled"), default=True)

    objects: ClassVar = ProviderQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("identity provider")
        verbose_name_plural = _("identity providers")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "url", "client_id"], name="provider_once"
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=["", *(role.value for role in Role)]),
                name="provider_role",
            ),
        )

    def __str__(self) -> str:
        return self.name


class Identity(OrganizationModel):
    """A user's account at an identity provider, identified by its subject."""

    provider = models.ForeignKey(Provider, on_delete=models.CASCADE, related_name="identities")
    user = models.ForeignKey("tenancy.User", on_delete=models.CASCADE, related_name="+")
    subject = models.CharField(max_length=255)
    email = models.CharField(_("email address"), max_length=254, blank=True, default="")
    used_at = models.DateTimeField(_("last used"), null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["provider", "subject"], name="identity_subject_once"),
            models.UniqueConstraint(fields=["provider", "user"], name="identity_user_once"),
        )

    def __str__(self) -> str:
        return f"{self.subject} at {self.provider_id}"
