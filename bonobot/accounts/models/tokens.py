"""Token: a credential of a person or a program in one organization."""

from typing import ClassVar

from django.db import models
from django.db.models.lookups import In
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel, GovernedQuerySet
from bonobot.accounts.models.organizations import Membership, User
from bonobot.accounts.role_labels import ROLE_CHOICES
from bonobot.accounts.roles import Role, list_roles_within


def _build_unexpired_filter() -> models.Q:
    return models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=timezone.now())


class TokenQuerySet(GovernedQuerySet):
    """Tokens by their state."""

    def usable(self) -> "TokenQuerySet":
        """Keep those whose text opens something now."""
        fresh = models.Q(fresh_until__isnull=True) | models.Q(fresh_until__gt=timezone.now())
        return self.living().filter(fresh)

    def usable_issued(self) -> "TokenQuerySet":
        """Keep those of `usable` that were issued, not granted: a much cheaper query."""
        return self.filter(_build_unexpired_filter(), user=None, revoked_at=None)

    def living(self) -> "TokenQuerySet":
        """Keep those neither revoked nor expired, and of grants those that their person may give.

        That is while the person is active and has a role that the grant's is within, and the
        organization isn't halted.
        """
        return self.filter(_build_unexpired_filter(), self._given(), revoked_at__isnull=True)

    def _given(self) -> models.Q:
        """Return what holds of tokens that were issued, and of grants that their person backs."""
        member = Membership.objects.filter(
            organization=models.OuterRef("organization"), user=models.OuterRef("user")
        ).filter(
            *[
                models.Q(~models.Q(role=own.value))
                | In(models.OuterRef("role"), [role.value for role in list_roles_within(own)])
                for own in Role
            ]
        )
        backed = models.Q(user__is_superuser=True) | models.Exists(member)
        running = models.Q(user__is_active=True, organization__halted_at__isnull=True)
        return models.Q(models.Q(user__isnull=True) | (running & backed))


class Token(GovernedModel):
    """A key for programs: shown once, kept as a peppered HMAC.

    `agent_ids` narrow it to these agents, `scopes` to a part of what its role may do, `networks` to
    where it may be used from; empty lists are no bounds. The agents are copied ids, since agents
    live above this room: one that is removed stays named, so that the token never becomes wider.
    `client` says which program it was made for.

    One with a `user` is a grant: that person let a program in (OAuth 2.1), whose `client_id` is
    here, at the one address `resource`. The digest is of the access token that the program has at
    the time, good until `fresh_until`; blank before it has one. See `grants`.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset({"last_used_at"})

    name = models.CharField(_("name"), max_length=255)
    key = models.CharField(_("key"), max_length=16, unique=True, editable=False)
    pepper_id = models.PositiveSmallIntegerField(editable=False)
    digest = models.CharField(max_length=64, editable=False)
    role = models.CharField(_("role"), max_length=16, choices=ROLE_CHOICES, default=Role.MEMBER)
    scopes = models.JSONField(_("scopes"), default=list, blank=True)
    agent_ids = models.JSONField(_("only for agents"), default=list, blank=True)
    networks = models.JSONField(_("only from networks"), default=list, blank=True)
    client = models.CharField(_("for program"), max_length=64, blank=True, default="")
    calls_per_minute = models.PositiveIntegerField(_("calls a minute"), null=True, blank=True)
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
        verbose_name=_("given by"),
    )
    client_id = models.CharField(
        _("client id"), max_length=255, blank=True, default="", db_default="", editable=False
    )
    resource = models.CharField(
        _("address"), max_length=512, blank=True, default="", db_default="", editable=False
    )
    fresh_until = models.DateTimeField(null=True, blank=True, editable=False)

    objects: ClassVar = TokenQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("token")
        verbose_name_plural = _("tokens")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="token_role"
            ),
            # What a person gave is for one address; what was issued is for all of them.
            models.CheckConstraint(
                condition=models.Q(user__isnull=True, resource="", fresh_until__isnull=True)
                | models.Q(user__isnull=False) & ~models.Q(resource=""),
                name="token_grant_has_an_address",
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.key}…)"

    @property
    def kind(self) -> str:
        """Tell whether it was issued (`token`), or given to a program by a person (`grant`)."""
        return "token" if self.user_id is None else "grant"
