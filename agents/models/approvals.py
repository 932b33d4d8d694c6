"""Models of approvals and session approvals, and their abstract base."""

from datetime import datetime
from typing import Any, ClassVar
from uuid import UUID

from django.db import models
from django.db.models import DateTimeField, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.models.agents import filter_readable_sessions
from bonobot.accounts.models.abstract_models import GovernedModel, OrganizationModel, ScopedQuerySet
from bonobot.accounts.principals import Principal
from bonobot.ledger.actor_names import get_actor_name

# The states of an unanswered request, before and after it expires.
WAITING = "waiting"
EXPIRED = "expired"
# The code of an approval to repeat a call whose outcome is unknown.
INTERRUPTED_CODE = "call_interrupted"


class PersonRequestQuerySet(ScopedQuerySet):
    """Filters for requests to people."""

    def pending(self, now: Any = None) -> "PersonRequestQuerySet":
        """Keep requests that a person can still answer; `now` may be an expression."""
        return self.filter(state=WAITING, expires_at__gt=now or timezone.now())

    def overdue(self) -> "PersonRequestQuerySet":
        """Keep requests that expired without an answer."""
        return self.filter(state=WAITING, expires_at__lte=timezone.now())

    def answer_pending(self, pk: UUID, state: str, now: datetime, **values: Any) -> bool:
        """Set a request's answer; return False if it expired or another answer was first."""
        return self.pending(now).filter(pk=pk).update(state=state, updated_at=now, **values) > 0

    def expire_pending(self, pk: UUID, **values: Any) -> bool:
        """Expire a request; return False if it was answered meanwhile."""
        return self.filter(pk=pk, state=WAITING).update(state=EXPIRED, **values) > 0

    def in_session_tree(self, session_id: UUID) -> "PersonRequestQuerySet":
        """Keep requests of a session and of the sessions started by it, oldest first."""
        requests = self.filter(Q(session=session_id) | Q(session__root_id=session_id))
        return requests.order_by("created_at")

    def visible_to(self, principal: Principal) -> "PersonRequestQuerySet":
        """Keep requests that a principal may read: all for readers, their own for members."""
        readable: PersonRequestQuerySet = filter_readable_sessions(self, principal, "requested_by")
        return readable


class PersonRequest(OrganizationModel):
    """A request to a person: `waiting` until it is answered, withdrawn or expired."""

    state: Any
    expires_at: "DateTimeField[Any, datetime]"
    requested_by_kind: Any
    requested_by_id: Any
    requested_by: Any

    objects: ClassVar = PersonRequestQuerySet.as_manager()

    class Meta:
        abstract = True

    @property
    def requester_name(self) -> str:
        """The requester as screens name actors; interfaces return `requested_by`."""
        return get_actor_name(self.requested_by_kind, self.requested_by_id, self.requested_by)

    def is_answerable(self, now: datetime) -> bool:
        """Tell whether a person can still answer."""
        return bool(self.state == WAITING and self.expires_at > now)

    def get_state_at(self, now: datetime) -> str:
        """Return the state at a time; overdue requests are expired, even if not yet updated."""
        is_overdue = self.state == WAITING and not self.is_answerable(now)
        return EXPIRED if is_overdue else str(self.state)


class Approval(PersonRequest):
    """A call that waits for a person's approval, and the answer.

    `digest` binds the answer to the caller, the tool, the canonical arguments, the definition and
    the policy rules; an approval is a ledger cell with the same ID, spent by one admission.
    `arguments` have secrets masked; `requested_arguments` are those before the approver changed
    them, None if they are unchanged. `id` is that of the audit row about the approval.
    `request_entry_id` is the audit entry of the call that requested it. `is_refusal_recorded`: the
    audit log has the refusal of a call without a session, which its client hasn't got yet.
    """

    class State(models.TextChoices):
        """The state of an approval."""

        WAITING = "waiting", _("pending")
        APPROVED = "approved", _("approved")
        DENIED = "denied", _("denied")
        EXPIRED = "expired", _("expired")
        WITHDRAWN = "withdrawn", _("canceled")

    agent = models.ForeignKey(
        "agents.Agent", on_delete=models.CASCADE, null=True, related_name="approvals"
    )
    session = models.ForeignKey(
        "agents.Session", on_delete=models.CASCADE, null=True, related_name="approvals"
    )
    call_id = models.UUIDField()
    request_entry_id = models.UUIDField(null=True)
    is_refusal_recorded = models.BooleanField(default=False, db_default=False)
    server_id = models.UUIDField(null=True)
    server_name = models.CharField(_("server"), max_length=255, blank=True, default="")
    own_name = models.CharField(_("tool"), max_length=512)
    label = models.CharField(_("display name"), max_length=512)
    method = models.CharField(max_length=32, default="tools/call")
    arguments = models.JSONField(_("arguments"), default=dict)
    requested_arguments = models.JSONField(_("requested arguments"), null=True)
    arguments_digest = models.CharField(max_length=64)
    definition_digest = models.CharField(max_length=64, blank=True, default="")
    rules_digest = models.CharField(max_length=64)
    digest = models.CharField(max_length=64)
    rule = models.CharField(_("rule"), max_length=255)
    code = models.CharField(max_length=64)
    reason = models.TextField(_("reason"))
    flow_labels = models.JSONField(_("flow labels seen"), default=list, db_column="held")
    requested_by_kind = models.CharField(max_length=10)
    requested_by_id = models.CharField(max_length=255)
    requested_by = models.CharField(_("requested by"), max_length=255)

    state = models.CharField(_("status"), max_length=10, choices=State, default=State.WAITING)
    expires_at = models.DateTimeField(_("expires"))
    decided_at = models.DateTimeField(_("decided"), null=True)
    decided_by = models.CharField(_("decided by"), max_length=255, blank=True, default="")
    message = models.TextField(_("message to the model"), blank=True, default="", db_column="word")

    class Meta:
        ordering = ("-created_at",)
        verbose_name = _("approval")
        verbose_name_plural = _("approvals")
        constraints = (
            models.UniqueConstraint(
                fields=["organization", "digest"],
                condition=Q(state="waiting"),
                name="approval_waits_once",
            ),
        )
        indexes = (
            models.Index(fields=["organization", "state", "-created_at"], name="approval_inbox"),
            models.Index(fields=["digest", "-created_at"], name="approval_by_digest"),
            models.Index(fields=["state", "expires_at"], name="approval_by_expiry"),
        )

    def __str__(self) -> str:
        return f"{self.call_title}: {self.get_state_display()}"

    @property
    def call_title(self) -> str:
        """The tool's own name and its server, as screens show them."""
        return f"{self.own_name} ({self.server_name})" if self.server_name else self.own_name

    @property
    def decider_name(self) -> str:
        """Who decided as screens name actors; only the label is stored."""
        return get_actor_name("cli", "", self.decided_by)

    @property
    def may_be_granted(self) -> bool:
        """Tell whether it can be approved for the session: not if the call may have run."""
        return self.session_id is not None and not self.may_have_run

    @property
    def may_be_changed(self) -> bool:
        """Tell whether its arguments can be changed: only a session's tool call that didn't run."""
        return self.may_be_granted and self.method == "tools/call"

    @property
    def may_have_run(self) -> bool:
        """Tell whether the call may have run already."""
        return self.code == INTERRUPTED_CODE

    @property
    def is_changed(self) -> bool:
        """Tell whether it was approved with other arguments than requested."""
        return self.state == self.State.APPROVED and self.requested_arguments is not None

    @property
    def answered_at(self) -> datetime | None:
        """When it was decided or expired."""
        return self.decided_at

    @property
    def is_expired(self) -> bool:
        """Tell whether it can't be answered or used any longer."""
        return self.expires_at <= timezone.now()


class SessionApproval(GovernedModel):
    """An approval of one tool for the rest of a session; delete it to revoke it.

    Bound to the definition and the policy rules: if either changes, approval is required again.
    """

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="grants")
    session = models.ForeignKey("agents.Session", on_delete=models.CASCADE, related_name="grants")
    server_id = models.UUIDField(null=True)
    own_name = models.CharField(_("tool"), max_length=512)
    label = models.CharField(_("display name"), max_length=512)
    definition_digest = models.CharField(max_length=64, blank=True, default="")
    rules_digest = models.CharField(max_length=64)
    granted_by = models.CharField(_("granted by"), max_length=255)

    class Meta:
        db_table = "agents_sessiongrant"
        ordering = ("-created_at",)
        verbose_name = _("session approval")
        verbose_name_plural = _("session approvals")

    def __str__(self) -> str:
        return f"{self.label} in {self.session_id}"
