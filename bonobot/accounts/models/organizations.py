"""User, Organization, FirstRun and Membership."""

import uuid
from collections.abc import Sequence
from typing import ClassVar

from django.apps import apps
from django.conf import settings
from django.contrib.auth.models import AbstractUser, UserManager
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import Governed, GovernedModel, GovernedQuerySet
from bonobot.accounts.roles import ROLE_CHOICES, Role
from bonobot.core.i18n import time_zones

MAX_APPROVAL_HOURS, MAX_AUDIT_DAYS = 720, 36_500


class GovernedUserManager(UserManager.from_queryset(GovernedQuerySet)):  # type: ignore[misc]  # made at run time
    """Django's user manager with set-based writes that increment the policy generation."""

    use_in_migrations = False


def _is_zone(name: str) -> None:
    if name not in time_zones.list_time_zones():
        raise ValidationError(
            _("%(name)r isn't a time zone. Use a name such as Europe/Berlin."),
            code="unknown_zone",
            params={"name": name},
        )


class User(AbstractUser, Governed):
    """A user. Permissions come from memberships, not from Django's permissions.

    Disabling a user ends their grants, so `is_active` and `is_superuser` are governed.
    """

    observed_fields: ClassVar[frozenset[str]] = frozenset(
        {"username", "password", "first_name", "last_name", "email"}
        | {"is_staff", "last_login", "date_joined", "language", "time_zone"}
    )

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    language = models.CharField(
        _("language"),
        max_length=8,
        choices=[("", _("browser default")), ("en", "English"), ("de", "Deutsch")],
        blank=True,
        default="",
        db_default="",
        help_text=_("For pages and messages."),
    )
    time_zone = models.CharField(
        _("time zone"),
        max_length=time_zones.MAX_ZONE_NAME,
        blank=True,
        default="",
        db_default="",
        validators=[_is_zone],
        help_text=_("Times are shown in this time zone, such as Europe/Berlin. If empty, UTC."),
    )

    objects: ClassVar = GovernedUserManager()

    @classmethod
    def list_organizations_of_rows(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        """Return the organizations in which users have a membership or a grant."""
        people = rows.order_by().values("pk")
        token = apps.get_model("tenancy", "Token")
        querysets = (model.objects.filter(user__in=people) for model in (Membership, token))
        return {
            organization_id
            for queryset in querysets
            for organization_id in queryset.values_list("organization_id", flat=True)
        }

    def list_governed_organizations(self) -> set[uuid.UUID]:
        """Return the organizations in which the user has a membership or a grant."""
        return self.list_organizations_of_rows(User.objects.filter(pk=self.pk))


class OrganizationQuerySet(GovernedQuerySet):
    """Organizations by user."""

    def for_user(self, user: User) -> "OrganizationQuerySet":
        """Keep those that `user` belongs to; all for platform administrators."""
        return self if user.is_superuser else self.for_member(user)

    def for_member(self, user: User | models.Expression) -> "OrganizationQuerySet":
        """Keep those that `user` belongs to."""
        return self.filter(memberships__user=user)


class RegistryAccess(models.TextChoices):
    """Who may read an organization's MCP registry."""

    OFF = "off", _("no one")
    TOKEN = "token", _("clients with a token")
    PUBLIC = "public", _("everyone who can reach this address")


class Organization(Governed):
    """A tenant; almost every other row belongs to one.

    While `halted_at` is set, nothing runs and no call is made (the kill switch).
    """

    id = models.UUIDField(primary_key=True, default=uuid.uuid4, editable=False)
    name = models.CharField(_("name"), max_length=255)
    slug = models.SlugField(_("slug"), max_length=64, unique=True)
    created_at = models.DateTimeField(_("created"), auto_now_add=True)
    halted_at = models.DateTimeField(_("kill switch enabled"), null=True, editable=False)
    four_eyes = models.BooleanField(
        _("no self-approval"),
        default=False,
        help_text=_("The person who requested a call or started its session can't approve it."),
    )
    approval_hours = models.PositiveSmallIntegerField(
        _("approval deadline (hours)"),
        null=True,
        blank=True,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_APPROVAL_HOURS)],
        help_text=_(
            "From 1 to 720. After that, the call is denied. If empty, the platform default applies."
        ),
    )
    calls_per_minute = models.PositiveIntegerField(
        _("calls per minute"),
        null=True,
        blank=True,
        help_text=_(
            "For all agents and tokens combined. 0 means no limit. If empty, the value from "
            "settings applies."
        ),
    )
    second_factor = models.BooleanField(
        _("require a second factor"),
        default=False,
        db_default=False,  # the previous release inserts rows without it
        help_text=_("Members without one must set one up before they can do anything else."),
    )
    single_sign_on = models.BooleanField(
        _("require single sign-on"),
        default=False,
        db_default=False,
        help_text=_(
            "Passwords then give no access to this organization, except for platform "
            "administrators."
        ),
    )
    audit_days = models.PositiveIntegerField(
        _("audit retention (days)"),
        null=True,
        blank=True,
        validators=[MaxValueValidator(MAX_AUDIT_DAYS)],
        help_text=_(
            "Older entries are deleted. 0 means never. If empty, the platform default applies."
        ),
    )
    registry = models.CharField(
        _("registry for MCP clients"),
        max_length=6,
        choices=RegistryAccess,
        default=RegistryAccess.OFF,
        db_default=RegistryAccess.OFF,
        help_text=_("Lists approved servers and agents. Clients can allow only the listed ones."),
    )

    objects: ClassVar = OrganizationQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("organization")
        verbose_name_plural = _("organizations")

    def __str__(self) -> str:
        return self.name

    def unique_error_message(
        self, model_class: type[models.Model], unique_check: Sequence[str]
    ) -> ValidationError:
        """Return the error for a taken slug, in words that say what to do."""
        if tuple(unique_check) != ("slug",):
            return super().unique_error_message(model_class, unique_check)
        message = _("An organization with this slug already exists. Choose another slug.")
        return ValidationError(message, code="unique")

    @property
    def registry_url(self) -> str:
        """The base URL of the registry, without the version of its API."""
        return f"{settings.BONOBOT_URL}/registry/{self.slug}"

    @classmethod
    def list_organizations_of_rows(cls, rows: models.QuerySet) -> set[uuid.UUID]:
        return set(rows.order_by().values_list("pk", flat=True))

    def list_governed_organizations(self) -> set[uuid.UUID]:
        """Return its own id, or nothing while it is being created."""
        return set() if self._state.adding else {self.pk}


class FirstRun(models.Model):
    """Which setup steps were skipped or closed; completed steps are derived from other rows."""

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
        verbose_name = _("member")
        verbose_name_plural = _("members")
        constraints = (
            models.UniqueConstraint(fields=["organization", "user"], name="membership_once"),
            models.CheckConstraint(
                condition=models.Q(role__in=[role.value for role in Role]), name="membership_role"
            ),
        )

    def __str__(self) -> str:
        return f"{self.user} · {self.get_role_display()}"
