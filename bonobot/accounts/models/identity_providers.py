"""Provider and Identity: OpenID Connect identity providers and their users."""

from typing import ClassVar

from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.accounts.role_labels import ROLE_CHOICES
from bonobot.accounts.roles import Role
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

    name = models.CharField(_("name"), max_length=255, help_text=_("As the sign-in shows it."))
    url = models.CharField(
        _("issuer"), max_length=512, help_text=_("Letter by letter as its tokens have it in iss.")
    )
    client_id = models.CharField(_("client id"), max_length=255)
    client_secret = SealedTextField(_("client secret"), blank=True, default="")
    domains = models.JSONField(_("e-mail domains"), default=list, blank=True)
    trusts_email = models.BooleanField(
        _("its addresses are proved"),
        default=False,
        help_text=_("For providers that verify each address, but send no email_verified."),
    )
    creates = models.BooleanField(
        _("makes accounts"),
        default=False,
        help_text=_("Whoever the provider knows joins at their first sign-in."),
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
        help_text=_("Like groups; then each sign-in sets the role. A member is reached by a dot."),
    )
    roles = models.JSONField(_("roles by value"), default=dict, blank=True)
    second_factor = models.BooleanField(
        _("asks for our second factor, too"),
        default=False,
        help_text=_("Else the provider's sign-in counts as one."),
    )
    announced = models.BooleanField(
        _("on the sign-in page"),
        default=True,
        help_text=_("Its name is shown to anybody; else people need its address."),
    )
    allow_private = models.BooleanField(
        _("may be at a private address"),
        default=False,
        help_text=_("Then http is allowed, too."),
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
    email = models.CharField(_("e-mail address"), max_length=254, blank=True, default="")
    used_at = models.DateTimeField(_("last used"), null=True)

    class Meta:
        constraints = (
            models.UniqueConstraint(fields=["provider", "subject"], name="identity_subject_once"),
            models.UniqueConstraint(fields=["provider", "user"], name="identity_user_once"),
        )

    def __str__(self) -> str:
        return f"{self.subject} at {self.provider_id}"
