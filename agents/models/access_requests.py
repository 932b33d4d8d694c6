"""AccessRequest: a member asks for a server, a tool or an agent."""

from typing import ClassVar

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from agents.models.agents import Agent, can_see_all_agents
from agents.models.approvals import PersonRequest, PersonRequestQuerySet
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action

MAX_TARGET_LENGTH = 255
MAX_REASON_LENGTH = 2_000


class AccessRequestQuerySet(PersonRequestQuerySet):
    """Filters for access requests."""

    def visible_to(self, principal: Principal) -> "AccessRequestQuerySet":
        """Keep requests that a principal may read: all for readers, their own for members."""
        rows: AccessRequestQuerySet = self.for_organization(principal.organization_id)
        if not principal.may(Action.VIEW):
            rows = rows.filter(requested_by_kind=principal.kind, requested_by_id=principal.id)
            if principal.kind == "user":
                return rows
        elif can_see_all_agents(principal):
            return rows
        own_rows = Q(requested_by_kind=principal.kind, requested_by_id=principal.id)
        visible_agents = Agent.objects.visible_to(principal).values("pk")
        return rows.filter(Q(agent__in=visible_agents) | Q(agent__isnull=True) & own_rows)


class AccessRequest(PersonRequest):
    """A request for something that the requester can't set up, and the answer.

    `target` is the name of a server or preset, of a tool, or of an agent; it is resolved only when
    the request is approved, so that creating one doesn't tell which names exist. `agent` is the
    agent that gets the server or tool. `target_key` identifies what is requested, so that only one
    request for it is pending per requester.
    """

    class Kind(models.TextChoices):
        """What is requested."""

        SERVER = "server", _("server")
        TOOL = "tool", _("tool")
        AGENT = "agent", _("agent")

    class State(models.TextChoices):
        """The state of a request."""

        WAITING = "waiting", _("pending")
        APPROVED = "approved", _("approved")
        DENIED = "denied", _("denied")
        EXPIRED = "expired", _("expired")
        WITHDRAWN = "withdrawn", _("canceled")

    kind = models.CharField(_("type"), max_length=10, choices=Kind)
    target = models.CharField(_("name"), max_length=MAX_TARGET_LENGTH)
    target_key = models.CharField(max_length=64)
    agent = models.ForeignKey(
        "agents.Agent",
        on_delete=models.CASCADE,
        null=True,
        related_name="+",
        verbose_name=_("agent"),
    )
    reason = models.TextField(_("reason"), max_length=MAX_REASON_LENGTH)
    requested_by_kind = models.CharField(max_length=10)
    requested_by_id = models.CharField(max_length=255)
    requested_by = models.CharField(_("requested by"), max_length=255)

    state = models.CharField(_("status"), max_length=10, choices=State, default=State.WAITING)
    expires_at = models.DateTimeField(_("expires"))
    answered_at = models.DateTimeField(_("answered"), null=True)
    answered_by = models.CharField(_("answered by"), max_length=255, blank=True, default="")
    message = models.TextField(_("message"), blank=True, default="")

    objects: ClassVar = AccessRequestQuerySet.as_manager()

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("access request")
        verbose_name_plural = _("access requests")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "requested_by_kind", "requested_by_id", "target_key"],
                condition=Q(state="waiting"),
                name="access_request_waits_once",
            ),
        )
        indexes = (
            models.Index(fields=["organization", "state", "-created_at"], name="access_inbox"),
            models.Index(fields=["state", "expires_at"], name="access_by_expiry"),
        )

    def __str__(self) -> str:
        return f"{self.target}: {self.get_state_display()}"
