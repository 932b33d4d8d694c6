"""Models of agents, their attached servers, tool names, skills and notes."""

from contextlib import suppress
from typing import Any, ClassVar
from uuid import UUID

from django.conf import settings
from django.core.exceptions import ValidationError
from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from agents.models.model_endpoints import ModelEndpoint
from bonobot.accounts.models import Membership, User
from bonobot.accounts.models.abstract_models import (
    GovernedModel,
    GovernedQuerySet,
)
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action, Role, may

DEFAULT_WORKSPACE_MIB = 256
DEFAULT_WORKSPACE_FILES = 10_000
MAX_WORKSPACE_FILES = 100_000  # counting them takes about a second


# Length of 8-4-4-4-12: other forms of a UUID could be slugs.
UUID_LENGTH = 36
# With more tools, the model searches for them (docs/tool-search.md).
DEFAULT_TOOLS_SHOWN = 40


def build_agent_lookup(name: str) -> dict[str, UUID | str]:
    """Return the lookup of an agent by ID or slug."""
    with suppress(ValueError):
        if len(name) == UUID_LENGTH:
            return {"pk": UUID(name)}
    return {"slug": name}


class AgentQuerySet(GovernedQuerySet):
    """Filters for agents."""

    def enabled(self) -> "AgentQuerySet":
        return self.filter(enabled=True)

    def visible_to(self, principal: Principal) -> "AgentQuerySet":
        """Keep agents that a principal may see: those of `open_to`, if its scopes allow it."""
        can_look = principal.may(Action.VIEW) or principal.may(Action.RUN_AGENTS)
        return self.open_to(principal) if can_look else self.none()

    def open_to(self, principal: Principal) -> "AgentQuerySet":
        """Keep agents that a principal may use by its role, on every interface.

        Readers of the organization have all agents, members those assigned to them. A token has the
        agents that it names; without any, a reader's token has all and a member's none. An OAuth
        client only has agents that the person who authorized it has, too.
        """
        rows = self.for_organization(principal.organization_id)
        if principal.granted_by_id is not None:
            rows = rows.visible_to_person(principal.granted_by_id)
        if principal.agent_ids:
            return rows.filter(pk__in=principal.agent_ids)
        if principal.has_role_for(Action.VIEW):
            return rows
        return rows.filter(members=principal.id) if principal.kind == "user" else rows.none()

    def visible_to_person(self, person_id: UUID) -> "AgentQuerySet":
        """Keep agents that a person may see; OAuth clients of the person have no others."""
        reader_roles = [role.value for role in Role if may(role, Action.VIEW)]
        reader_memberships = Membership.objects.filter(
            organization=models.OuterRef("organization"), user=person_id, role__in=reader_roles
        )
        agent_members = Agent.members.through.objects.filter(
            agent=models.OuterRef("pk"), user=person_id
        )
        superusers = User.objects.filter(pk=person_id, is_superuser=True)
        return self.filter(
            models.Exists(reader_memberships)
            | models.Exists(agent_members)
            | models.Exists(superusers)
        )

    def runnable_by(self, principal: Principal) -> "AgentQuerySet":
        """Keep enabled agents that a principal may run."""
        can_run = principal.may(Action.RUN_AGENTS)
        return self.visible_to(principal).enabled() if can_run else self.none()

    def get_by_name(self, principal: Principal, name: str) -> "Agent":
        """Return the visible agent with this ID or slug; raises `NotFound`."""
        visible = self.visible_to(principal)
        agent: Agent = visible.get_or_404(principal.organization_id, **build_agent_lookup(name))
        return agent


class Agent(GovernedModel):
    """An agent: instructions, a model endpoint, attached servers, a tool policy and limits.

    Limits are per user message: model turns, calls, and run time in seconds (without waiting).
    `builtin_tools` are its toolsets with non-default options. `workspace_folder` is a folder of the
    host that a platform administrator attached; without one, the agent has its own folder with a
    quota. `workspace_labels` are the flow labels, as the ledger's bits, of the sessions that wrote
    to it. With more server tools than `tool_search_above`, its model searches for them (0: it
    always gets all). With `tools_in_prompt`, the system prompt lists the servers' tools, also if
    the model supports tool calls.
    """

    name = models.CharField(_("name"), max_length=255)
    slug = models.SlugField(_("slug"), max_length=64)
    description = models.CharField(_("description"), max_length=500, blank=True, default="")
    instructions = models.TextField(_("instructions"), blank=True, default="")
    model_endpoint = models.ForeignKey(
        ModelEndpoint, on_delete=models.PROTECT, related_name="agents", verbose_name=_("model")
    )
    enabled = models.BooleanField(_("enabled"), default=True)
    members = models.ManyToManyField(
        settings.AUTH_USER_MODEL,
        blank=True,
        related_name="+",
        verbose_name=_("members who can run it"),
    )
    max_turns = models.PositiveIntegerField(
        _("turns per message"), default=50, validators=[MinValueValidator(1)]
    )
    max_calls = models.PositiveIntegerField(_("calls per message"), default=200)
    max_run_s = models.PositiveIntegerField(
        _("seconds per message"), default=3600, validators=[MinValueValidator(1)]
    )
    calls_per_minute = models.PositiveIntegerField(
        _("calls per minute"), default=60, validators=[MinValueValidator(1)]
    )
    tool_search_above = models.PositiveIntegerField(
        _("tools shown at once"), default=DEFAULT_TOOLS_SHOWN
    )
    # The JSON Schema of answers; null or empty: any text.
    output_schema = models.JSONField(_("output schema"), null=True, blank=True)
    tools_in_prompt = models.BooleanField(
        _("list tools in the prompt"), default=False, db_default=False
    )

    builtin_tools = models.JSONField(_("built-in tools"), default=dict, blank=True)
    workspace_folder = models.CharField(
        _("attached folder"), max_length=1024, blank=True, default=""
    )
    workspace_mib = models.PositiveIntegerField(
        _("workspace (MiB)"), default=DEFAULT_WORKSPACE_MIB, validators=[MinValueValidator(1)]
    )
    workspace_files = models.PositiveIntegerField(
        _("workspace (files)"),
        default=DEFAULT_WORKSPACE_FILES,
        validators=[MinValueValidator(1), MaxValueValidator(MAX_WORKSPACE_FILES)],
    )
    workspace_labels = models.PositiveSmallIntegerField(
        default=0, editable=False, db_column="workspace_holds"
    )

    objects: ClassVar = AgentQuerySet.as_manager()

    class Meta:
        ordering = ("name",)
        verbose_name = _("agent")
        verbose_name_plural = _("agents")
        constraints = (models.UniqueConstraint(fields=["organization", "slug"], name="agent_slug"),)

    def __str__(self) -> str:
        return self.name


class AgentServer(GovernedModel):
    """A server attached to an agent, and what the agent may use of it.

    Empty `allowed_tools` means all tools; entries of both lists are globs over the server's own
    tool names, and `denied_tools` wins. Resources and prompts are globs over their URIs, templates
    or names; empty means none.
    """

    agent = models.ForeignKey(
        "agents.Agent", on_delete=models.CASCADE, related_name="agent_servers"
    )
    server = models.ForeignKey(
        "mcp_servers.Server",
        on_delete=models.CASCADE,
        related_name="+",
        verbose_name=_("server"),
    )
    enabled = models.BooleanField(_("enabled"), default=True)
    allowed_tools = models.JSONField(_("allowed tools"), default=list, blank=True)
    denied_tools = models.JSONField(_("denied tools"), default=list, blank=True)
    allowed_resources = models.JSONField(_("allowed resources"), default=list, blank=True)
    allowed_prompts = models.JSONField(_("allowed prompts"), default=list, blank=True)

    class Meta:
        db_table = "agents_binding"
        ordering = ("server__name",)
        verbose_name = _("attached server")
        verbose_name_plural = _("attached servers")
        constraints = (
            models.UniqueConstraint(fields=["agent", "server"], name="binding_once_per_server"),
        )

    def __str__(self) -> str:
        return f"{self.agent} → {self.server}"

    def clean(self) -> None:
        """Reject another organization's server, another agent's private one, and invalid lists."""
        super().clean()
        if self.server.organization_id != self.agent.organization_id:
            raise ValidationError({"server": _("This server belongs to another organization.")})
        if self.server.private_to_agent and self.server.scope_id != self.agent_id:
            raise ValidationError({"server": _("This server is private to another agent.")})
        for field in ("allowed_tools", "denied_tools", "allowed_resources", "allowed_prompts"):
            value = getattr(self, field)
            if not isinstance(value, list) or not all(isinstance(name, str) for name in value):
                raise ValidationError({field: _('A list of names or globs, such as ["get_*"].')})


class ToolName(GovernedModel):
    """The name of a server's tool for one agent.

    Stored and never parsed: renaming a server doesn't change its tools' names.
    """

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="tool_names")
    server = models.ForeignKey("mcp_servers.Server", on_delete=models.CASCADE, related_name="+")
    own_name = models.CharField(max_length=512)
    name = models.CharField(max_length=64)

    class Meta:
        verbose_name = _("tool name")
        verbose_name_plural = _("tool names")
        constraints = (
            models.UniqueConstraint(fields=["agent", "name"], name="toolname_unique"),
            models.UniqueConstraint(
                fields=["agent", "server", "own_name"], name="toolname_once_per_tool"
            ),
        )

    def __str__(self) -> str:
        return self.name


class AgentAssignment(GovernedModel):
    """An attachment of an agent: a skill, a callable agent, or a workflow as a tool."""

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="assignments")
    skill = models.ForeignKey(
        "agents.Skill", on_delete=models.CASCADE, null=True, related_name="assignments"
    )
    callable_agent = models.ForeignKey(
        "agents.Agent",
        on_delete=models.CASCADE,
        null=True,
        related_name="callable_from",
        db_column="callee_id",
    )
    workflow = models.ForeignKey(
        "agents.Workflow", on_delete=models.CASCADE, null=True, related_name="assignments"
    )

    class Meta:
        db_table = "agents_given"
        verbose_name = _("attached skill")
        verbose_name_plural = _("agent skills")
        constraints = (
            models.UniqueConstraint(
                fields=["agent", "skill"],
                condition=Q(skill__isnull=False),
                name="skill_given_once",
            ),
            models.UniqueConstraint(
                fields=["agent", "callable_agent"],
                condition=Q(callable_agent__isnull=False),
                name="callee_given_once",
            ),
            models.UniqueConstraint(
                fields=["agent", "workflow"],
                condition=Q(workflow__isnull=False),
                name="workflow_given_once",
            ),
            models.CheckConstraint(
                condition=Q(skill__isnull=False, callable_agent__isnull=True, workflow__isnull=True)
                | Q(skill__isnull=True, callable_agent__isnull=False, workflow__isnull=True)
                | Q(skill__isnull=True, callable_agent__isnull=True, workflow__isnull=False),
                name="given_one_thing",
            ),
        )

    def __str__(self) -> str:
        return f"{self.skill or self.callable_agent or self.workflow} → {self.agent}"


def can_see_all_agents(principal: Principal) -> bool:
    """Tell whether a principal sees all agents of its organization, so that no filter is needed.

    An OAuth client is also limited by the person who authorized it, regardless of its role.
    """
    is_restricted = principal.agent_ids or principal.granted_by_id is not None
    return principal.may(Action.VIEW) and not is_restricted


def filter_by_visible_agents(rows: Any, principal: Principal, agent_path: str = "agent") -> Any:
    """Keep rows of agents that a principal sees; `agent_path` is the lookup."""
    organization_rows = rows.for_organization(principal.organization_id)
    if can_see_all_agents(principal):
        return organization_rows
    return organization_rows.filter(
        **{f"{agent_path}__in": Agent.objects.visible_to(principal).values("pk")}
    )


def filter_readable_sessions(rows: Any, principal: Principal, owner_prefix: str) -> Any:
    """Keep sessions, or requests in them, that a principal may read.

    Readers of the organization read those of visible agents, all others their own: `owner_prefix`
    starts the names of the two owner columns. People, but not tokens, keep access to their own
    sessions with agents that they can no longer see.
    """
    owner_filter = {f"{owner_prefix}_kind": principal.kind, f"{owner_prefix}_id": principal.id}
    if principal.may(Action.VIEW):
        return filter_by_visible_agents(rows, principal)
    if principal.kind == "user":
        return rows.for_organization(principal.organization_id).filter(**owner_filter)
    return filter_by_visible_agents(rows, principal).filter(**owner_filter)
