"""Token: a credential for one organization, issued or granted by a user."""

from typing import Any, ClassVar

from django.db import models
from django.db.models.lookups import In
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel, GovernedQuerySet
from bonobot.accounts.models.organizations import Membership, User
from bonobot.accounts.roles import ROLE_CHOICES, Role, list_roles_within


def _build_unexpired_filter(now: Any = None) -> models.Q:
    return models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=now or timezone.now())


class TokenQuerySet(GovernedQuerySet):
    """Tokens by their state."""

    def usable(self) -> "TokenQuerySet":
        """Keep those that can be used now."""
        is_fresh = models.Q(access_expires_at__isnull=True) | models.Q(
            access_expires_at__gt=timezone.now()
        )
        return self.active().filter(is_fresh)

    def usable_issued(self, now: Any = None) -> "TokenQuerySet":
        """Keep usable tokens that were issued, not granted: a much cheaper query.

        `now` can be the parameter of a prepared query.
        """
        return self.filter(_build_unexpired_filter(now), user=None, revoked_at=None)

    def active(self) -> "TokenQuerySet":
        """Keep those neither revoked nor expired; grants only while their user may give them.

        That is while the user is active, has a role that covers the grant's, and the organization
        isn't halted.
        """
        return self.filter(
            _build_unexpired_filter(), self._build_backed_condition(), revoked_at__isnull=True
        )

    def _build_backed_condition(self) -> models.Q:
        """Return a condition for issued tokens and for grants whose user may still give them."""
        backing_membership = Membership.objects.filter(
            organization=models.OuterRef("organization"), user=models.OuterRef("user")
        ).filter(
            *[
                models.Q(~models.Q(role=member_role.value))
                | In(
                    models.OuterRef("role"), [role.value for role in list_roles_within(member_role)]
                )
                for member_role in Role
            ]
        )
        is_backed = models.Q(user__is_superuser=True) | models.Exists(backing_membership)
        is_running = models.Q(user__is_active=True, organization__halted_at__isnull=True)
        return models.Q(models.Q(user__isnull=True) | (is_running & is_backed))


class Token(GovernedModel):
    """A credential for programs: shown once, stored as a peppered HMAC.

    `agent_ids` limits it to these agents, `scopes` to a part of its role, `networks` to client
    addresses; empty lists mean no limit. Ids of deleted agents are kept, so that the token never
    gains access. `client` names the program it was created for.

    A token with a `user` is a grant: the user authorized the OAuth client `client_id` (OAuth 2.1)
    for the address `resource`. `digest` is that of the current access token, which is valid until
    `access_expires_at`; it is blank before the first one.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset({"last_used_at"})

    name = models.CharField(_("name"), max_length=255)
    key = models.CharField(_("key"), max_length=16, unique=True, editable=False)
    pepper_id = models.PositiveSmallIntegerField(editable=False)
    digest = models.CharField(max_length=64, editable=False)
    role = models.CharField(_("role"), max_length=16, choices=ROLE_CHOICES, default=Role.MEMBER)
    scopes = models.JSONField(_("scopes"), default=list, blank=True)
    agent_ids = models.JSONField(_("only for agents"), default=list, blank=True)
    networks = models.JSONField(_("allowed networks"), default=list, blank=True)
    client = models.CharField(_("client"), max_length=64, blank=True, default="")
    calls_per_minute = models.PositiveIntegerField(_("calls per minute"), null=True, blank=True)
    expires_at = models.DateTimeField(_("expires"), null=True, blank=True)
    last_used_at = models.DateTimeField(_("last used"), null=True, blank=True, editable=False)
    revoked_at = models.DateTimeField(_("revoked"), null=True, blank=True, editable=False)
    user = models.ForeignKey(
        User,
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        editable=False,
        related_name="+",
        verbose_name=_("granted by"),
    )
    client_id = models.CharField(
        _("client ID"), max_length=255, blank=True, default="", db_default="", editable=False
    )
    resource = models.CharField(
        _("URL"), max_length=512, blank=True, default="", db_default="", editable=False
    )
    access_expires_at = models.DateTimeField(
        null=True, blank=True, editable=False, db_column="fresh_until"
    )

    objects: ClassVar = TokenQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("token")
        verbose_name_plural = _("tokens")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="token_role"
            ),
            # A grant is for one address, an issued token for all.
            models.CheckConstraint(
                condition=models.Q(user__isnull=True, resource="", access_expires_at__isnull=True)
                | models.Q(user__isnull=False) & ~models.Q(resource=""),
                name="token_grant_has_an_address",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.key}…)"

    @property
    def kind(self) -> str:
        """`token` if it was issued, `grant` if a user authorized an OAuth client."""
        return "token" if self.user_id is None else "grant"
