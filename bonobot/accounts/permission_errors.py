"""The error of a missing permission: what isn't allowed, and who can change that."""

from collections.abc import Sequence

from bonobot.accounts.roles import ALLOWED_ROLES, PLATFORM_ONLY, Action, Role
from bonobot.core.i18n.messages import TranslatableMessage, format_message
from bonobot.core.problems import Forbidden

ACTION_TITLES: dict[Action, TranslatableMessage] = {
    Action.VIEW: format_message("view servers, agents, and settings"),
    Action.VIEW_AUDIT: format_message("view the audit log"),
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
