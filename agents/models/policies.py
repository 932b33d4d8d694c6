"""ToolPolicy and ToolRule: which tools may be called."""

from django.db import models
from django.db.models import Q
from django.utils.translation import gettext_lazy as _

from bonobot.accounts.models.abstract_models import GovernedModel


class ToolPolicy(GovernedModel):
    """A mode with its rules, of one agent or (no agent) of the organization.

    The organization's decides about calls that are made without an agent; what its rules deny, or
    ask about, holds for every agent too.

    `draft` is another policy that stands in its shadow: what it would have decided is recorded with
    each call, and decides nothing. JSON: `mode` and `rules` as `Policy.as_dict` has
    them, and `since`, when it began.
    """

    class Mode(models.TextChoices):
        """The four modes; the same for MCP and built-in tools."""

        NONE = "none", _("none: every tool is blocked")
        ALLOWLIST = "allowlist", _("allowlist: only what a rule allows")
        DENYLIST = "denylist", _("denylist: all but what a rule denies")
        ALL = "all", _("all tools")

    agent = models.OneToOneField(
        "agents.Agent",
        on_delete=models.CASCADE,
        null=True,
        blank=True,
        related_name="tool_policy",
    )
    mode = models.CharField(_("mode"), max_length=10, choices=Mode, default=Mode.NONE)
    draft = models.JSONField(_("draft in its shadow"), null=True, blank=True, editable=False)

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
    """Allow, ask about or deny what matches: a server's own tool names, or built-in tools.

    A person may write `mcp_github_*`; stored is the server and the pattern over its own names, so
    that neither a rename nor a wrapper ever changes a decision. `condition` is a JSON Schema: the
    rule holds for calls whose arguments fit it.
    """

    class Effect(models.TextChoices):
        """What a match does."""

        ALLOW = "allow", _("allow")
        ASK = "ask", _("ask a person")
        DENY = "deny", _("deny")

    class Source(models.TextChoices):
        """Whose tools the pattern is about."""

        MCP = "mcp", _("MCP server")
        BUILTIN = "builtin", _("built-in")

    policy = models.ForeignKey(ToolPolicy, on_delete=models.CASCADE, related_name="rules")
    effect = models.CharField(_("effect"), max_length=5, choices=Effect)
    source = models.CharField(_("source"), max_length=8, choices=Source, default=Source.MCP)
    server = models.ForeignKey(
        "mcp_servers.Server", on_delete=models.CASCADE, null=True, blank=True, related_name="+"
    )
    pattern = models.CharField(_("tool name or glob"), max_length=512)
    condition = models.JSONField(_("when the arguments fit"), null=True, blank=True)
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
        return f"{self.effect} {self.source}:{self.pattern}"
