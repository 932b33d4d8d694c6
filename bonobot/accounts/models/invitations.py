"""Invitation: an invitation to join an organization."""

from typing import ClassVar

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import OrganizationModel, ScopedQuerySet
from bonobot.accounts.roles import ROLE_CHOICES, Role


class InvitationQuerySet(ScopedQuerySet):
    """Invitations by their state."""

    def open(self) -> "InvitationQuerySet":
        """Keep those neither accepted nor revoked; expired ones can be resent."""
        return self.filter(accepted_at=None, revoked_at=None)

    def usable(self) -> "InvitationQuerySet":
        """Keep those that can be accepted now."""
        return self.open().filter(expires_at__gt=timezone.now())


class Invitation(OrganizationModel):
    """An invitation of an email address; its link is stored as a peppered HMAC.

    It refers to no account, so it doesn't reveal whether one exists. `agent_ids` are the agents
    that a new member gets; plain ids, because this package doesn't depend on agents.
    """

    email = models.EmailField(_("email address"), max_length=254)
    role = models.CharField(_("role"), max_length=16, choices=ROLE_CHOICES, default=Role.MEMBER)
    agent_ids = models.JSONField(_("agents"), default=list, blank=True)
    key = models.CharField(max_length=16, unique=True, editable=False)
    pepper_id = models.PositiveSmallIntegerField(editable=False)
    digest = models.CharField(max_length=64, editable=False)
    invited_by = models.CharField(_("invited by"), max_length=255, editable=False)
    expires_at = models.DateTimeField(_("expires"), editable=False)
    mailed_at = models.DateTimeField(_("email sent"), null=True, editable=False)
    accepted_at = models.DateTimeField(_("accepted"), null=True, editable=False)
    accepted_by = models.ForeignKey(
        "tenancy.User", on_delete=models.SET_NULL, null=True, related_name="+", editable=False
    )
    revoked_at = models.DateTimeField(_("revoked"), null=True, editable=False)

    objects: ClassVar = InvitationQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("invitation")
        verbose_name_plural = _("invitations")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "email"],
                condition=models.Q(accepted_at=None, revoked_at=None),
                name="invitation_open_once",
            ),
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="invitation_role"
            ),
        )

    def __str__(self) -> str:
        return self.email
