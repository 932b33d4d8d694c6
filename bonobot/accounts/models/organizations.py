"""User, Organization, Membership, Token, FirstRun, KeptAnswer."""

import uuid
from typing import ClassVar

from django.contrib.auth.models import AbstractUser, UserManager
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models.lookups import In
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import (
    Governed,
    GovernedModel,
    GovernedQuerySet,
    OrganizationModel,
)
from bonobot.accounts.models.identity_providers import Identity as Identity
from bonobot.accounts.models.identity_providers import Issuer as Issuer
from bonobot.accounts.models.identity_providers import Provider as Provider
from bonobot.accounts.models.invitations import Attempts as Attempts
from bonobot.accounts.models.invitations import FactorSecret as FactorSecret
from bonobot.accounts.models.invitations import Invitation as Invitation
from bonobot.accounts.role_labels import ROLE_CHOICES as ROLE_CHOICES
from bonobot.accounts.roles import Role, list_roles_within
from bonobot.core.crypto.encrypted_fields import SealedTextField
from bonobot.core.i18n import localization

MOST_APPROVAL_HOURS, MOST_AUDIT_DAYS = 720, 36_500


class People(UserManager.from_queryset(GovernedQuerySet)):  # type: ignore[misc]  # made at run time
    """People, made and found as Django does; set-based writes of them bump, too."""

    use_in_migrations = False


def _is_zone(name: str) -> None:
    if name not in localization.list_time_zones():
        raise ValidationError(
            _("%(name)r is no time zone: write one such as Europe/Berlin."),
            code="unknown_zone",
            params={"name": name},
        )


class User(AbstractUser, Governed):
    """A person. What they may do is said by their memberships, not by Django's permissions.

    It ends what they let programs do when they are switched off, so the two columns that say so
    are governed.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset(
        {"username", "password", "first_name", "last_name", "email"}
        | {"is_staff", "last_login", "date_joined", "language", "time_zone"}
    )

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    language = models.CharField(
        _("language"),
        max_length=8,
        choices=[("", _("as the browser asks")), ("en", "English"), ("de", "Deutsch")],
        blank=True,
        default="",
        db_default="",
        help_text=_("Of the pages and of messages."),
    )
    time_zone = models.CharField(
        _("time zone"),
        max_length=localization.MAX_ZONE_NAME,
        blank=True,
        default="",
        db_default="",
        validators=[_is_zone],
        help_text=_("Moments are shown by it, such as Europe/Berlin; empty: UTC."),
    )

    objects: ClassVar = People()

    @classmethod
    def organizations_of(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        """Return the organizations that some people belong to, or let programs into."""
        people = rows.order_by().values("pk")
        found = (model.objects.filter(user__in=people) for model in (Membership, Token))
        return {one for those in found for one in those.values_list("organization_id", flat=True)}

    def governed(self) -> set[uuid.UUID]:
        """Return the organizations that the person belongs to, or lets programs into."""
        return self.organizations_of(User.objects.filter(pk=self.pk))


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
    second_factor = models.BooleanField(
        _("everybody needs a second factor"),
        default=False,
        db_default=False,  # processes of the release before make organizations without it
        help_text=_("Who has none is led to set one up before anything else."),
    )
    single_sign_on = models.BooleanField(
        _("everybody signs in by an identity provider"),
        default=False,
        db_default=False,
        help_text=_("Passwords then open nothing here, except for platform administrators."),
    )
    audit_days = models.PositiveIntegerField(
        _("days that the audit is kept"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(MOST_AUDIT_DAYS)],
        help_text=_("Then old rows leave; 0: never, empty: as the platform has it."),
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
        return f"{self.user} · {self.get_role_display()}"


def _unexpired() -> models.Q:
    return models.Q(expires_at__isnull=True) | models.Q(expires_at__gt=timezone.now())


class TokenQuerySet(GovernedQuerySet):
    """Tokens by their state."""

    def usable(self) -> "TokenQuerySet":
        """Keep those whose text opens something now."""
        fresh = models.Q(fresh_until__isnull=True) | models.Q(fresh_until__gt=timezone.now())
        return self.living().filter(fresh)

    def usable_issued(self) -> "TokenQuerySet":
        """Keep those of `usable` that were issued, not granted: a much cheaper query."""
        return self.filter(_unexpired(), user=None, revoked_at=None)

    def living(self) -> "TokenQuerySet":
        """Keep those neither revoked nor expired, and of grants those that their person may give.

        That is while the person is active and has a role that the grant's is within, and the
        organization isn't halted.
        """
        return self.filter(_unexpired(), self._given(), revoked_at__isnull=True)

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
    """A key for programs: shown once, kept as a peppered HMAC (FEATURES D7).

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
