"""Models of tool policies and their rules."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel


class ToolPolicy(GovernedModel):
    """A mode with rules, of one agent or (without an agent) of the organization.

    The organization's policy decides about calls without an agent; its `deny` and `ask` rules also
    apply to every agent.

    `draft` is a policy in shadow mode: its decision is recorded with each call, without effect.
    JSON: `mode` and `rules` as in `Policy.as_dict`, and `since`, when shadow mode started.
    """

    class Mode(models.TextChoices):
        """The four modes; the same for MCP and built-in tools."""

        NONE = "none", _("none: deny every tool")
        ALLOWLIST = "allowlist", _("allowlist: allow only what a rule allows")
        DENYLIST = "denylist", _("denylist: allow all except what a rule denies")
        ALL = "all", _("all tools")

    agent = models.OneToOneField(
        "agents.Agent",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="tool_policy",
    )
    mode = models.CharField(_("mode"), max_length=10, choices=Mode, default=Mode.NONE)
    draft = models.JSONField(_("shadow mode draft"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("tool policy")
        verbose_name_plural = _("tool policies")
        constraints = (
            models.UniqueConstraint(
                fields=["organization"],
                condition=Q(agent__isnull=True),
                name="policy_of_organization_once",
            ),
            models.CheckConstraint(
                condition=Q(mode__in=["none", "allowlist", "denylist", "all"]), name="policy_mode"
            ),
        )

    def __str__(self) -> str:
        return f"{self.agent or self.organization}: {self.mode}"


class ToolRule(GovernedModel):
    """A rule that allows, asks about or denies matching tools of a server, or built-in tools.

    A pattern such as `mcp_github_*` is stored as the server and a pattern over its own tool names,
    so that renames don't change decisions. `condition` is a JSON Schema: the rule applies to calls
    with matching arguments.
    """

    class Effect(models.TextChoices):
        """The decision of a match."""

        ALLOW = "allow", _("allow")
        ASK = "ask", _("ask a person")
        DENY = "deny", _("deny")

    class Source(models.TextChoices):
        """The source of the tools."""

        MCP = "mcp", _("MCP server")
        BUILTIN = "builtin", _("built-in")

    policy = models.ForeignKey(ToolPolicy, on_delete=models.CASCADE, related_name="rules")
    effect = models.CharField(_("effect"), max_length=5, choices=Effect)
    source = models.CharField(_("source"), max_length=8, choices=Source, default=Source.MCP)
    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    pattern = models.CharField(_("tool name or glob"), max_length=512)
    condition = models.JSONField(_("when arguments match"), null=True, blank=True)
    condition_digest = models.CharField(max_length=64, blank=True, default="", editable=False)

    class Meta:
        ordering = ("effect", "source", "pattern")
        verbose_name = _("tool rule")
        verbose_name_plural = _("tool rules")
        constraints = (
            models.UniqueConstraint(
                fields=["policy", "effect", "source", "server", "pattern", "condition_digest"],
                name="rule_once_per_policy",
            ),
        )

    def __str__(self) -> str:
        return f"{self.effect} {self.source}:{self.pattern or 'default'}"
