"""Labels of roles and descriptions of scopes."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from bonobot.accounts.roles import Role, TokenScope

SCOPE_DESCRIPTIONS: dict[TokenScope, Any] = {
    TokenScope.TOOLS: _("call governed tools over MCP"),
    TokenScope.AGENTS: _("run agents over MCP"),
    TokenScope.MANAGE: _("manage agents, servers, skills, and workflows over MCP"),
    TokenScope.API: _("use the REST API with all permissions of the role"),
    TokenScope.PLATFORM: _("use the REST API with all permissions of a platform administrator"),
}

ROLE_CHOICES = [
    (Role.OWNER.value, _("owner")),
    (Role.OPERATOR.value, _("operator")),
    (Role.REVIEWER.value, _("reviewer")),
    (Role.AUDITOR.value, _("auditor")),
    (Role.MEMBER.value, _("member")),
]
