"""Writes `docs/roles.md` from the roles and scopes: `python -m docs.making.roles`."""

import os
from pathlib import Path

import django

from bonobot.accounts.roles import (
    PLATFORM_ONLY,
    ROLE_ACTIONS,
    SCOPE_ACTIONS,
    SCOPE_DESCRIPTIONS,
    Action,
    Role,
    TokenScope,
)

PAGE = Path(__file__).resolve().parents[1] / "roles.md"
ACTION_DESCRIPTIONS: dict[Action, str] = {
    Action.VIEW: "view servers, definitions, agents, sessions, policies, and health",
    Action.VIEW_AUDIT: "view and export the audit log, notifications, and channels",
    Action.MANAGE_SERVERS: "manage servers; enable and disable definitions",
    Action.MANAGE_AGENTS: "manage agents: their servers, policies, budgets, and recordings",
    Action.MANAGE_WORKFLOWS: "create and update skills, workflows, triggers, and their tools",
    Action.APPROVE_DEFINITIONS: "approve and reject definitions",
    Action.APPROVE_CALLS: "approve and deny calls",
    Action.CALL_TOOLS: "call a server's tools without an agent",
    Action.USE_TOOLS: "call the tools of agents; members: only of agents assigned to them",
    Action.RUN_AGENTS: "run agents; members: only agents assigned to them",
    Action.MANAGE_TOKENS: "create and revoke tokens",
    Action.MANAGE_MEMBERS: "add and remove members, and set their roles",
    Action.MANAGE_NOTICES: "create and update notification channels",
    Action.MANAGE_ORGANIZATION: "rename the organization, set its rules, use the kill switch",
    Action.MANAGE_ISSUERS: "manage external issuers, whose tokens are accepted over MCP",
    Action.MANAGE_LAUNCHERS: "manage the launcher allowlist and the commands of stdio servers",
    Action.ALLOW_PRIVATE_ADDRESS: "allow private addresses for a server",
    Action.TRUST_ALL_CHANGES: "trust all changes of a server without review",
    Action.GRANT_HOST_ACCESS: "give an agent a shell or a folder of this host",
}
PAGE_INTRODUCTION = """# Roles and permissions

Each member and each token has one role in an organization. A platform administrator (a Django
superuser) has all permissions in every organization. This page is generated from
`bonobot/accounts/roles.py`. A denial names the permission in its rule (`role:manage_agents`) and
the roles that have it in its remedy.
"""

SCOPES_SECTION = """## Scopes of tokens

A token can have scopes in addition to its role: it has only the permissions that both allow. A
token without scopes has all permissions of its role. A denial has the code `insufficient_scope` and
names the scopes, one of which is required. The REST API requires `api` or `platform`.

`platform` adds to the role: over REST, the token has all permissions, including those that are
reserved for platform administrators. Only a platform administrator can create or change such a
token, in the admin or with `bonobot tokens create`.
"""


def render_roles_page() -> str:
    """Return the page as Markdown."""
    roles = list(Role)
    lines = [
        PAGE_INTRODUCTION,
        f"| permission | {' | '.join(roles)} | description |",
        "|---" * (len(roles) + 2) + "|",
        *(_render_action_row(action, roles) for action in Action),
        "",
        "Permissions without a ✓ are reserved for platform administrators.",
        "",
        SCOPES_SECTION,
        "| scope | description | permissions |",
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


if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "bonobot.settings")
    django.setup()
    PAGE.write_text(render_roles_page(), encoding="utf-8")
