"""Navigation of the admin: groups, entries and required permissions."""

from typing import Any

from django.conf import settings
from django.utils.translation import gettext_lazy as _

from agents.console.admin import settings_check
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action

IDENTITY_PROVIDERS = "tenancy_provider_changelist"
ORGANIZATION = "tenancy_organization_changelist"
WORKFLOWS = "agents_workflow_changelist"
OAUTH_CLIENTS = "oauth_clients"
SCHEDULES = "django_celery_beat_periodictask_changelist"

# (title, icon, URL name, required action, platform administrators only)
Entry = tuple[Any, str, str, Action, bool]
NAVIGATION: tuple[tuple[Any, tuple[Entry, ...]], ...] = (
    ("", ((_("Dashboard"), "monitoring", "index", Action.VIEW, False),)),
    (
        _("Connect"),
        (
            (_("Servers"), "dns", "mcp_servers_server_changelist", Action.VIEW, False),
            (_("Presets"), "extension", "mcp_servers_preset_changelist", Action.VIEW, False),
        ),
    ),
    (
        _("Agents"),
        (
            (_("Agents"), "smart_toy", "agents_agent_changelist", Action.RUN_AGENTS, False),
            (_("Sessions"), "forum", "agents_session_changelist", Action.RUN_AGENTS, False),
            (_("Workflows"), "account_tree", WORKFLOWS, Action.RUN_AGENTS, False),
            (_("Skills"), "school", "agents_skill_changelist", Action.RUN_AGENTS, False),
            (_("Models"), "psychology", "agents_modelendpoint_changelist", Action.VIEW, False),
        ),
    ),
    (
        _("Governance"),
        (
            (_("Rules"), "rule", "organization_policy", Action.VIEW, False),
            (_("Kill switch"), "emergency_home", "organization_kill_switch", Action.VIEW, False),
            (_("Approvals"), "how_to_reg", "agents_approval_changelist", Action.VIEW, False),
            (
                _("Elicitation requests"),
                "contact_support",
                "agents_elicitationrequest_changelist",
                Action.VIEW,
                False,
            ),
            (_("Budgets"), "savings", "agents_budget_changelist", Action.VIEW, False),
            (_("Usage"), "bar_chart", "usage", Action.VIEW_AUDIT, False),
            (
                _("Audit log"),
                "receipt_long",
                "ledger_auditrow_changelist",
                Action.VIEW_AUDIT,
                False,
            ),
            (
                _("Notifications"),
                "outgoing_mail",
                "notices_notification_changelist",
                Action.VIEW_AUDIT,
                False,
            ),
            (
                _("Channels"),
                "campaign",
                "notices_notificationchannel_changelist",
                Action.VIEW_AUDIT,
                False,
            ),
            (_("Members"), "group", "tenancy_membership_changelist", Action.VIEW, False),
            (_("Tokens"), "key", "tenancy_token_changelist", Action.MANAGE_TOKENS, False),
            (_("OAuth clients"), "apps", OAUTH_CLIENTS, Action.MANAGE_TOKENS, False),
            (_("Sign-in"), "login", IDENTITY_PROVIDERS, Action.MANAGE_ORGANIZATION, False),
            (_("Organization"), "domain", ORGANIZATION, Action.MANAGE_ORGANIZATION, False),
        ),
    ),
    (
        _("Platform"),
        (
            (_("Users"), "badge", "tenancy_user_changelist", Action.VIEW, True),
            (_("External issuers"), "passkey", "tenancy_issuer_changelist", Action.VIEW, True),
            (_("Launchers"), "terminal", "mcp_servers_launcher_changelist", Action.VIEW, True),
            (_("Schedules"), "schedule", SCHEDULES, Action.VIEW, True),
            (_("Settings check"), "troubleshoot", settings_check.URL_NAME, Action.VIEW, True),
        ),
    ),
)


def can_open(principal: Principal, entry: Entry) -> bool:
    """Return whether the navigation shows an entry to the principal."""
    _title, _icon, address, action, is_platform_only = entry
    if address == OAUTH_CLIENTS and not settings.BONOBOT_OAUTH:
        return False
    if is_platform_only:
        return principal.platform_admin
    # Auditors and reviewers can't run agents, but can view them.
    return principal.may(action) or (action == Action.RUN_AGENTS and principal.may(Action.VIEW))
