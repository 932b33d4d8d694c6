"""Labels and descriptions of roles, actions and scopes, and the generated roles page."""

from typing import Any

from django.utils.translation import gettext_lazy as _

from bonobot.accounts.roles import (
    PLATFORM_ONLY,
    ROLE_ACTIONS,
    SCOPE_ACTIONS,
    Action,
    Role,
    TokenScope,
)

ACTION_DESCRIPTIONS: dict[Action, str] = {
    Action.VIEW: "read servers, definitions, agents, sessions, policies and health",
    Action.VIEW_AUDIT: "read and export the audit, notices and channels",
    Action.MANAGE_SERVERS: "add, change, switch and remove servers; switch definitions",
    Action.MANAGE_AGENTS: "change and switch agents; their servers, policy, budgets, recordings",
    Action.MANAGE_WORKFLOWS: "write skills and workflows, what starts them, and tools of our own",
    Action.APPROVE_DEFINITIONS: "approve and refuse what servers offer",
    Action.APPROVE_CALLS: "answer calls that wait for a person",
    Action.CALL_TOOLS: "call tools of a server without an agent",
    Action.USE_TOOLS: "call the tools of agents; members: of those given to them",
    Action.RUN_AGENTS: "run agents; members: those given to them",
    Action.MANAGE_TOKENS: "issue and revoke tokens",
    Action.MANAGE_MEMBERS: "add and remove members, and give them roles",
    Action.MANAGE_NOTICES: "make and change channels for notices",
    Action.MANAGE_ORGANIZATION: "rename it, set its rules, halt and resume it",
    Action.MANAGE_ISSUERS: "say whose tokens are taken over MCP beside our own",
    Action.MANAGE_LAUNCHERS: "allow programs for stdio servers, and set their commands",
    Action.ALLOW_PRIVATE_ADDRESS: "let a server be at a private address",
    Action.TRUST_ALL_CHANGES: "let a server's changes hold without approval",
    Action.GRANT_HOST_ACCESS: "give an agent a shell, or a folder of this host",
}
SCOPE_DESCRIPTIONS: dict[TokenScope, Any] = {
    TokenScope.TOOLS: _("call governed tools over MCP"),
    TokenScope.AGENTS: _("run agents over MCP"),
    TokenScope.MANAGE: _("manage agents, servers, skills and workflows over MCP"),
    TokenScope.API: _("REST; all that the role may do"),
}
PAGE_INTRODUCTION = """# Who may do what

Each person has one role in an organization, and each token has one. A platform administrator (a
Django superuser) may do everything in every organization. This page is made from the table in the
code, `bonobot/accounts/roles.py`; a refusal names the action in its rule (`role:manage_agents`) and
the roles that have it in its remedy.
"""

SCOPES_SECTION = """## Scopes of tokens

A token may have scopes beside its role: it may do what both allow. A token without scopes may do
all that its role may. A refusal says `insufficient_scope` and names the scopes of which one is
needed; REST always needs `api`.
"""


def render_roles_page() -> str:
    """Return the roles page as Markdown."""
    roles = list(Role)
    lines = [
        PAGE_INTRODUCTION,
        f"| action | {' | '.join(roles)} | what it is |",
        "|---" * (len(roles) + 2) + "|",
        *(_render_action_row(action, roles) for action in Action),
        "",
        "Actions without a ✓ are the platform administrator's alone.",
        "",
        SCOPES_SECTION,
        "| scope | what it is | actions |",
        "|---|---|---|",
        *(_render_scope_row(scope) for scope in TokenScope),
        "",
    ]
    return "\n".join(lines)


def _render_action_row(action: Action, roles: list[Role]) -> str:
    marks = [
        "✓" if action in ROLE_ACTIONS[role] and action not in PLATFORM_ONLY else ""
        for role in roles
    ]
    return f"| `{action}` | {' | '.join(marks)} | {ACTION_DESCRIPTIONS[action]} |"


def _render_scope_row(scope: TokenScope) -> str:
    has_all_actions = SCOPE_ACTIONS[scope] == frozenset(Action)
    action_names = ", ".join(f"`{action}`" for action in Action if action in SCOPE_ACTIONS[scope])
    return (
        f"| `{scope}` | {SCOPE_DESCRIPTIONS[scope]} | "
        f"{'all' if has_all_actions else action_names} |"
    )


ROLE_CHOICES = [
    (Role.OWNER.value, _("owner")),
    (Role.OPERATOR.value, _("operator")),
    (Role.REVIEWER.value, _("reviewer")),
    (Role.AUDITOR.value, _("auditor")),
    (Role.MEMBER.value, _("member")),
]
