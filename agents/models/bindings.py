"""Binding and ToolName: which servers an agent has, and what their tools are called there."""

from django.core.exceptions import ValidationError
from django.db import models
from django.utils.translation import gettext_lazy as _

from bonobot.tenancy.scoped import GovernedModel


class Binding(GovernedModel):
    """Agent × server: on or off, and how much of the server the agent gets (FEATURES D2).

    `allowed_tools` empty means all that the server offers; entries of both lists are globs over the
    server's own tool names, and a denied tool is denied whatever else says. Resources and prompts
    are ticked one by one or by globs over their URIs, templates or names; empty means none.
    """

    agent = models.ForeignKey("agents.Agent", on_delete=models.CASCADE, related_name="bindings")
    server = models.ForeignKey(
        "mcp_servers.Server",
        on_delete=models.CASCADE,
        related_name="+",
        verbose_name=_("server"),
    )
    enabled = models.BooleanField(_("enabled"), default=True)
    allowed_tools = models.JSONField(_("only these tools"), default=list, blank=True)
    denied_tools = models.JSONField(_("never these tools"), default=list, blank=True)
    allowed_resources = models.JSONField(_("these resources"), default=list, blank=True)
    allowed_prompts = models.JSONField(_("these prompts"), default=list, blank=True)

    class Meta:
        ordering = ("server__name",)
        verbose_name = _("bound server")
        verbose_name_plural = _("bound servers")
        constraints = (
            models.UniqueConstraint(fields=["agent", "server"], name="binding_once_per_server"),
        )

    def __str__(self) -> str:
        return f"{self.agent} → {self.server}"

    def clean(self) -> None:
        """Refuse another organization's server, another agent's private one, and odd lists."""
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
    """The name under which an agent knows a server's tool (DESIGN section 4).

    Stored once and looked up, never parsed: renaming a server changes no tool's name.
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
