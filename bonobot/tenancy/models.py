"""User, Organization, Membership and Token: the tenants and who acts for them."""

import uuid
from typing import ClassVar

from django.contrib.auth.models import AbstractUser
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.lib.sealed import SealedTextField
from bonobot.tenancy.roles import Role
from bonobot.tenancy.scoped import (
    Governed,
    GovernedModel,
    GovernedQuerySet,
    OrganizationModel,
)

ROLE_CHOICES = [
    (Role.OWNER.value, _("owner")),
    (Role.OPERATOR.value, _("operator")),
    (Role.REVIEWER.value, _("reviewer")),
    (Role.AUDITOR.value, _("auditor")),
    (Role.MEMBER.value, _("member")),
]
MOST_APPROVAL_HOURS = 720


class User(AbstractUser):
    """A person. What they may do is said by their memberships, not by Django's permissions."""

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)


class OrganizationQuerySet(GovernedQuerySet):
    """Organizations as a person sees them."""

    def of_user(self, user: User) -> "OrganizationQuerySet":
        """Keep those that `user` belongs to; a platform administrator sees all."""
        if user.is_superuser:
            return self
        return self.filter(memberships__user=user)


class Organization(Governed):
    """The tenant: every other row belongs to one, and nothing crosses.

    While `halted_at` is set, nothing of it runs and no call is made (the kill switch).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=255)
    slug = models.SlugField(_("slug"), max_length=64, unique=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    halted_at = models.DateTimeField(_("halted"), null=True, editable=False)
    four_eyes = models.BooleanField(
        _("nobody approves their own calls"),
        default=False,
        help_text=_("Whoever asked for a call, or started its session, can't approve it."),
    )
    approval_hours = models.PositiveSmallIntegerField(
        _("hours to answer a call that waits"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MOST_APPROVAL_HOURS)],
        help_text=_("From 1 to 720; then it is refused. Empty: as the platform has it."),
    )
    calls_per_minute = models.PositiveIntegerField(
        _("calls a minute"),
        null=True,
        blank=True,
        help_text=_("Of all agents and tokens together; 0: no limit, empty: as the settings say."),
    )

    objects: ClassVar = OrganizationQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("organization")
        verbose_name_plural = _("organizations")

    def __str__(self) -> str:
        return self.name

    @classmethod
    def organizations_of(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        """Return the organizations themselves."""
        return set(rows.order_by().values_list("pk", flat=True))

    def governed(self) -> set[uuid.UUID]:
        """Return itself; while it is being made, nothing was decided yet."""
        return set() if self._state.adding else {self.pk}


class FirstRun(models.Model):
    """What people said about an organization's first steps; what is done is seen from its rows."""

    organization = models.OneToOneField(
        Organization, on_delete=models.CASCADE, primary_key=True, related_name="first_run"
    )
    skipped = models.JSONField(default=list)  # slugs of steps
    closed_at = models.DateTimeField(null=True)

    def __str__(self) -> str:
        return f"first run of {self.organization_id}"


class Membership(GovernedModel):
    """A person's role in an organization."""

    organization = models.ForeignKey(
        Organization, on_delete=models.CASCADE, related_name="memberships"
    )
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(_("role"), max_length=16, choices=ROLE_CHOICES, default=Role.MEMBER)

    class Meta:
        verbose_name = _("membership")
        verbose_name_plural = _("memberships")
        constraints = (
            models.UniqueConstraint(fields=["organization", "user"], name="membership_once"),
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="membership_role"
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} · {self.role}"


class TokenQuerySet(GovernedQuerySet):
    """Tokens by their state."""

    def usable(self) -> "TokenQuerySet":
        """Keep those neither revoked nor expired."""
        now = timezone.now()
        alive = models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=now)
        return self.filter(alive, revoked_at__isnull=True)


class Token(GovernedModel):
    """A key for programs: shown once, kept as a peppered HMAC (FEATURES D7).

    `agent_ids` narrow it to these agents, `scopes` to a part of what its role may do, `networks` to
    where it may be used from; empty lists are no bounds. The agents are copied ids, since agents
    live above this room: one that is removed stays named, so that the token never becomes wider.
    `client` says which program it was made for.
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

    objects: ClassVar = TokenQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("token")
        verbose_name_plural = _("tokens")
        constraints = (
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="token_role"
            ),
        )

    def __str__(self) -> str:
        return f"{self.name} ({self.key}…)"


class IssuerQuerySet(GovernedQuerySet):
    """Issuers by their state."""

    def enabled(self) -> "IssuerQuerySet":
        """Keep those whose tokens are taken."""
        return self.filter(enabled=True)


class Issuer(GovernedModel):
    """An authorization server of somebody else, whose tokens open the gateway (RFC 9068).

    What a token of it may do is said here: `scopes`, `agent_ids` and `role` bound what its claims
    ask for. An issuer belongs to one organization, so a token never has to say to which it leads.
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


class KeptAnswer(OrganizationModel):
    """The first answer to a write that carried an `Idempotency-Key`, kept for a day.

    `status` stays empty while the first request runs, or for ever when its process died in between:
    such a request is never repeated. The body is sealed, since a new token's text may be in it.
    """

    principal = models.CharField(max_length=300)
    key = models.CharField(max_length=255)
    request_digest = models.CharField(max_length=64)
    status = models.PositiveSmallIntegerField(null=True)
    body = SealedTextField(blank=True, default="", remembered=False)

    class Meta:
        verbose_name = _("kept answer")
        verbose_name_plural = _("kept answers")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "principal", "key"], name="answer_once_per_key"
            ),
        )
        indexes = (models.Index(fields=["organization", "created_at"], name="answer_by_age"),)

    def __str__(self) -> str:
        return f"{self.key}: {self.status or 'no answer yet'}"
