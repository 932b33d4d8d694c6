"""Roles, the actions each role may perform, token scopes, and roles by claims; no database access.

The documentation is generated from this table. A platform administrator (Django superuser) may do
everything in every organization. Only platform administrators may perform `PLATFORM_ONLY` actions:
someone who can set a command line can run code on the host.

A token may have scopes in addition to its role; it may do what both allow. The scope `platform` is
the exception: it makes the token a platform administrator's for REST, regardless of its role.
"""

from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from django.utils.translation import gettext_lazy as _

from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.problems import Forbidden

if TYPE_CHECKING:
    from bonobot.accounts.models import Issuer, Provider


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

ACTION_TITLES: dict[Action, TranslatableMessage] = {
    Action.VIEW: format_message("view servers and settings"),
    Action.VIEW_AUDIT: format_message("view the audit log and usage"),
    Action.MANAGE_SERVERS: format_message("manage servers"),
    Action.MANAGE_AGENTS: format_message("manage agents"),
    Action.MANAGE_WORKFLOWS: format_message("manage skills and workflows"),
    Action.APPROVE_DEFINITIONS: format_message("approve and reject definitions"),
    Action.APPROVE_CALLS: format_message("approve and deny calls"),
    Action.CALL_TOOLS: format_message("call tools without an agent"),
    Action.USE_TOOLS: format_message("call tools"),
    Action.RUN_AGENTS: format_message("run agents"),
    Action.MANAGE_TOKENS: format_message("manage tokens"),
    Action.MANAGE_MEMBERS: format_message("manage members"),
    Action.MANAGE_NOTICES: format_message("manage notification channels"),
    Action.MANAGE_ORGANIZATION: format_message("manage the organization"),
    Action.MANAGE_ISSUERS: format_message("manage external issuers"),
    Action.MANAGE_LAUNCHERS: format_message("manage launchers"),
    Action.ALLOW_PRIVATE_ADDRESS: format_message("allow private addresses"),
    Action.TRUST_ALL_CHANGES: format_message("trust changes without review"),
    Action.GRANT_HOST_ACCESS: format_message("give agents access to this host"),
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


def build_permission_error(role: Role, *actions: Action) -> Forbidden:
    """Return the error for a role that may do none of the actions, of which one would do.

    Without an action, no role may do it.
    """
    if not actions:
        return Forbidden(
            format_message("You don't have permission to do this."),
            rule="role",
            remedy="No role has permission for this.",
        )
    action = actions[0]
    return Forbidden(
        format_message(
            "You don't have permission to {activity}.", activity=ACTION_TITLES[Action(action)]
        ),
        rule=f"role:{action}",
        remedy="Ask a platform administrator. No role has this permission."
        if PLATFORM_ONLY.issuperset(actions)
        else format_message(
            "Your role is {role}. An owner can give you a role that has this permission: "
            "{who_may}.",
            role=role,
            who_may=format_allowed_roles(actions),
        ),
    )


def format_allowed_roles(actions: Sequence[Action]) -> str:
    """Return the names of the roles that may do at least one of the actions."""
    roles = [role for action in actions for role in ALLOWED_ROLES[action].split(", ")]
    return ", ".join(dict.fromkeys(roles)) or "none"


def find_claimed_role(issuer: "Issuer | Provider", claims: Mapping[str, Any]) -> Role | None:
    """Return the first role, in enum order, that a claim's values map to, else the default."""
    values = list_claim_strings(get_claim(claims, issuer.role_claim)) if issuer.role_claim else ()
    mapped_roles = {issuer.roles.get(value) for value in values}
    claimed_role = next((role for role in Role if role in mapped_roles), None)
    return claimed_role or (Role(issuer.role) if issuer.role else None)


def get_claim(claims: Mapping[str, Any], name: str) -> Any:
    """Return a claim by name, or a nested field by a dotted path."""
    if name in claims:
        return claims[name]
    value: Any = claims
    for part in name.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def list_claim_strings(value: Any) -> tuple[str, ...]:
    values = value if isinstance(value, list) else [value]
    return tuple(item for item in values if isinstance(item, str))
