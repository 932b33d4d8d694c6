"""Model of definitions: what a server declared, and what a person approved."""

from typing import Any, ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel, GovernedQuerySet
from bonobot.core.text.canonical_json import compute_json_digest, is_same_value
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.actor_names import get_actor_name

MAX_NAME_LENGTH = 512
# Declared and not approved; `fault` is checked separately, because an index can't contain text of
# any length.
NOT_APPROVED = Q(present=True) & ~Q(pinned_digest=F("digest"))
REJECTED = NOT_APPROVED & Q(fault="") & Q(rejected_digest=F("digest"))
AWAITING_REVIEW = NOT_APPROVED & Q(fault="") & ~Q(rejected_digest=F("digest"))


class DefinitionQuerySet(GovernedQuerySet):
    """Filters for definitions by state, with the same rules as `Definition.state`."""

    def rejected(self) -> "DefinitionQuerySet":
        """Keep definitions that a person rejected as they are declared now."""
        return self.filter(REJECTED)

    def tools(self) -> "DefinitionQuerySet":
        return self.filter(kind=Definition.Kind.TOOL)

    def without_fault(self) -> "DefinitionQuerySet":
        """Keep definitions without a fault."""
        return self.filter(fault="")

    def callable(self) -> "DefinitionQuerySet":
        """Keep definitions that are approved as declared, enabled and present."""
        return self.without_fault().filter(
            ~Q(pinned_digest=""), pinned_digest=F("digest"), enabled=True, present=True
        )

    def awaiting_review(self) -> "DefinitionQuerySet":
        """Keep definitions that wait for review: new, or changed since their approval."""
        return self.filter(AWAITING_REVIEW)

    def only_call_fields(self) -> "DefinitionQuerySet":
        """Load only the fields for decisions and calls: `pinned` is as long as `payload`."""
        return self.only(
            *("organization", "server", "kind", "name", "payload", "digest", "schema_verdict"),
            *("fault", "pinned_digest", "rejected_digest", "labels", "enabled", "present"),
        )

    def in_state(self, state: str) -> "DefinitionQuerySet":
        """Keep definitions in one `Definition.State`, by the rules of `Definition.state`."""
        current = self.without_fault().filter(present=True)
        pinned = ~Q(pinned_digest="")
        return {
            Definition.State.REFUSED: self.exclude(fault=""),
            Definition.State.GONE: self.without_fault().filter(present=False),
            Definition.State.REJECTED: self.rejected(),
            Definition.State.PENDING: self.awaiting_review().filter(pinned_digest=""),
            Definition.State.CHANGED: self.awaiting_review().filter(pinned),
            Definition.State.APPROVED: current.filter(pinned, pinned_digest=F("digest")),
        }[Definition.State(state)]


class Definition(GovernedModel):
    """A tool, resource, resource template, skill, prompt or the instructions, as declared.

    `payload` is the whole declaration, `digest` is over all its fields; `pinned` and
    `pinned_digest` are what a person approved. A definition is callable if both digests are equal.
    A definition that disappears keeps its approval. `fault` says why it can never be used.
    `rejected_digest` is what a person rejected: it waits for no review until it changes.
    """

    # Schemas are large and read often, and a change replaces the whole value.
    detects_in_place_changes = False

    class Kind(models.TextChoices):
        """The kinds of definitions in MCP."""

        TOOL = "tool", _("tool")
        RESOURCE = "resource", _("resource")
        RESOURCE_TEMPLATE = "resource_template", _("resource template")
        SKILL = "skill", _("skill")
        PROMPT = "prompt", _("prompt")
        INSTRUCTIONS = "instructions", _("instructions")

    class State(models.TextChoices):
        """The review state; computed, never stored."""

        APPROVED = "approved", _("approved")
        PENDING = "pending", _("pending review")
        CHANGED = "changed", _("changed, pending review")
        REJECTED = "rejected", _("rejected")
        REFUSED = "refused", _("can't be used")
        GONE = "gone", _("no longer declared")

    observed_fields: ClassVar[frozenset[str]] = frozenset(
        {"last_seen_at", "updated_at", "rules_version"}
    )

    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, related_name="definitions"
    )
    kind = models.CharField(_("type"), max_length=20, choices=Kind)
    name = models.CharField(_("name"), max_length=MAX_NAME_LENGTH, blank=True)
    title = models.CharField(_("title"), max_length=255, blank=True, default="")
    description = models.TextField(_("description"), blank=True, default="")
    payload = models.JSONField(_("declaration"), default=dict)
    digest = models.CharField(_("digest"), max_length=64)
    schema_verdict = models.CharField(max_length=10, blank=True, default="")
    fault = models.TextField(_("error"), blank=True, default="")
    findings = models.JSONField(_("findings"), default=list, blank=True)
    # The version of the scan rules (`scanning.definitions`); 0: before there were versions.
    rules_version = models.PositiveIntegerField(default=0, db_default=0, editable=False)
    pinned = models.JSONField(_("approved definition"), null=True, blank=True)
    pinned_digest = models.CharField(max_length=64, blank=True, default="")
    pinned_at = models.DateTimeField(_("approved"), null=True, blank=True)
    pinned_by = models.CharField(_("approved by"), max_length=255, blank=True, default="")
    rejected_digest = models.CharField(max_length=64, blank=True, default="", db_default="")
    rejected_at = models.DateTimeField(_("rejected"), null=True, blank=True)
    rejected_by = models.CharField(
        _("rejected by"), max_length=255, blank=True, default="", db_default=""
    )
    rejection_reason = models.TextField(
        _("reason for the rejection"), blank=True, default="", db_default=""
    )
    labels = models.JSONField(_("flow labels"), null=True, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True)
    present = models.BooleanField(_("still declared"), default=True)
    last_seen_at = models.DateTimeField(_("last seen"), null=True, blank=True)

    objects: ClassVar = DefinitionQuerySet.as_manager()

    class Meta:
        ordering = ("kind", "name")
        verbose_name = _("definition")
        verbose_name_plural = _("definitions")
        constraints = (
            models.UniqueConstraint(
                fields=["server", "kind", "name"], name="definition_once_per_server"
            ),
        )
        indexes = (
            # Covers the search of definitions: there are many, and the rows are long.
            models.Index(
                fields=["organization", "kind", "name", "server"], name="definition_by_names"
            ),
            models.Index(fields=["rules_version"], name="definition_by_rules"),
            models.Index(
                fields=["organization", "server"], name="definition_waiting", condition=NOT_APPROVED
            ),
            # PostgreSQL counts pending reviews with this index only. SQLite chooses an index before
            # it knows the parameters, so it can only use the previous one.
            models.Index(
                fields=["organization", "server", "pinned_digest"],
                name="definition_waits",
                condition=AWAITING_REVIEW,
            ),
        )

    def __str__(self) -> str:
        return self.name or str(self.get_kind_display())

    @property
    def approver_name(self) -> str:
        """Who approved the definition as screens name actors; only the label is stored."""
        return get_actor_name("cli", "", self.pinned_by)

    @property
    def state(self) -> State:
        """Return the review state, by the same rules as the queryset."""
        if self.fault:
            return self.State.REFUSED
        if not self.present:
            return self.State.GONE
        if self.pinned_digest == self.digest:
            return self.State.APPROVED
        if self.rejected_digest == self.digest:
            return self.State.REJECTED
        return self.State.CHANGED if self.pinned_digest else self.State.PENDING

    def has_payload(self, payload: Any) -> bool:
        """Tell whether a declaration is the stored one, by its digest or its storable form."""
        return self.digest == compute_json_digest(payload) or is_same_value(
            self.payload, make_storable(payload)
        )

    def set_payload(self, payload: Any) -> None:
        """Set a declaration and the digest over all its fields, which is what gets approved."""
        self.payload = make_storable(payload)
        self.digest = compute_json_digest(payload)

    @property
    def input_schema(self) -> dict:
        """The tool's original input schema."""
        return self.payload.get("inputSchema") or {"type": "object"}
