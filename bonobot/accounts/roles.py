"""Roles, the actions each role may perform, and token scopes; no database access.

The documentation is generated from this table. A platform administrator (Django superuser) may do
everything in every organization. Only platform administrators may perform `PLATFORM_ONLY` actions:
someone who can set a command line can run code on the host.

A token may have scopes in addition to its role; it may do what both allow. The scope `platform` is
the exception: it makes the token a platform administrator's for REST, regardless of its role.
"""

from collections.abc import Collection
from enum import StrEnum
from typing import Any

from django.utils.translation import gettext_lazy as _


class Role(StrEnum):
    """The role of a person or token in one organization."""

    OWNER = "owner"
    OPERATOR = "operator"
    REVIEWER = "reviewer"
    AUDITOR = "auditor"
    MEMBER = "member"


class Action(StrEnum):
    """An action that a role may perform."""

    VIEW = "view"
    VIEW_AUDIT = "view_audit"
    MANAGE_SERVERS = "manage_servers"
    MANAGE_AGENTS = "manage_agents"
    MANAGE_WORKFLOWS = "manage_workflows"
    APPROVE_DEFINITIONS = "approve_definitions"
    APPROVE_CALLS = "approve_calls"
    CALL_TOOLS = "call_tools"
    USE_TOOLS = "use_tools"
    RUN_AGENTS = "run_agents"
    MANAGE_TOKENS = "manage_tokens"
    MANAGE_MEMBERS = "manage_members"
    MANAGE_NOTICES = "manage_notices"
    MANAGE_ORGANIZATION = "manage_organization"
    MANAGE_ISSUERS = "manage_issuers"
    MANAGE_LAUNCHERS = "manage_launchers"
    ALLOW_PRIVATE_ADDRESS = "allow_private_address"
    TRUST_ALL_CHANGES = "trust_all_changes"
    GRANT_HOST_ACCESS = "grant_host_access"


PLATFORM_ONLY = frozenset(
    {
        Action.MANAGE_ISSUERS,
        Action.MANAGE_LAUNCHERS,
        Action.ALLOW_PRIVATE_ADDRESS,
        Action.TRUST_ALL_CHANGES,
        Action.GRANT_HOST_ACCESS,
    }
)

ROLE_ACTIONS: dict[Role, frozenset[Action]] = {
    Role.OWNER: frozenset(Action) - PLATFORM_ONLY,
    Role.OPERATOR: frozenset(
        {
            Action.VIEW,
            Action.VIEW_AUDIT,
            Action.MANAGE_SERVERS,
            Action.MANAGE_AGENTS,
            Action.MANAGE_WORKFLOWS,
            Action.CALL_TOOLS,
            Action.USE_TOOLS,
            Action.RUN_AGENTS,
        }
    ),
    Role.REVIEWER: frozenset(
        {Action.VIEW, Action.VIEW_AUDIT, Action.APPROVE_DEFINITIONS, Action.APPROVE_CALLS}
    ),
    Role.AUDITOR: frozenset({Action.VIEW, Action.VIEW_AUDIT}),
    Role.MEMBER: frozenset({Action.USE_TOOLS, Action.RUN_AGENTS}),
}

ALLOWED_ROLES: dict[Action, str] = {
    action: ", ".join(role for role in Role if action in ROLE_ACTIONS[role])
    or "platform administrator"
    for action in Action
}


class TokenScope(StrEnum):
    """A scope of a token: a part of what its role may do, with its OAuth name."""

    TOOLS = "mcp:tools"
    AGENTS = "mcp:agents"
    MANAGE = "mcp:manage"
    API = "api"
    PLATFORM = "platform"


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


# No MCP scope includes approving calls: a model could approve its own calls.
SCOPE_ACTIONS: dict[TokenScope, frozenset[Action]] = {
    TokenScope.TOOLS: frozenset({Action.VIEW, Action.CALL_TOOLS, Action.USE_TOOLS}),
    TokenScope.AGENTS: frozenset({Action.VIEW, Action.RUN_AGENTS}),
    TokenScope.MANAGE: frozenset(
        {
            Action.VIEW,
            Action.VIEW_AUDIT,
            Action.MANAGE_SERVERS,
            Action.MANAGE_AGENTS,
            Action.MANAGE_WORKFLOWS,
        }
    ),
    TokenScope.API: frozenset(Action),
    TokenScope.PLATFORM: frozenset(Action),
}


def may(role: Role, action: Action) -> bool:
    """Return whether `role` may do `action` in its organization."""
    return action in ROLE_ACTIONS[role]


def list_roles_within(role: Role) -> tuple[Role, ...]:
    """Return the roles that may do no more than `role`, least privileged first."""
    return tuple(
        sorted(
            (candidate for candidate in Role if ROLE_ACTIONS[candidate] <= ROLE_ACTIONS[role]),
            key=lambda candidate: (len(ROLE_ACTIONS[candidate]), candidate),
        )
    )


def is_action_in_scope(scopes: Collection[TokenScope] | None, action: Action) -> bool:
    """Return whether one of the scopes has `action`; None means no limit."""
    return scopes is None or any(action in SCOPE_ACTIONS[scope] for scope in scopes)


def list_scopes_with_action(action: Action) -> tuple[TokenScope, ...]:
    """Return the scopes that have `action`, the narrowest first, without `platform`."""
    return tuple(
        scope
        for scope in TokenScope
        if action in SCOPE_ACTIONS[scope] and scope != TokenScope.PLATFORM
    )
