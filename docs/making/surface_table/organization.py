"""Rows of organization, control, installation."""

from docs.making.surface_table.types import Area, Feature

ORGANIZATION_AREA = Area(
    "Organization",
    (
        Feature(
            "View and change an organization's settings",
            admin="organization.list organization.change",
            rest="get_organization update_organization",
            cli="org show, org set",
        ),
        Feature(
            "Halt and resume an organization",
            admin="organization_kill_switch",
            rest="enable_kill_switch disable_kill_switch",
            cli="org halt, org resume",
        ),
        Feature(
            "Switch the organization",
            admin="switch_organization",
            why=(
                "Each request and each command names its organization (`Bonobot-Organization`, "
                "`--org`)."
            ),
        ),
        Feature(
            "Create an organization",
            admin="organization.add",
            why=(
                "Only for platform administrators, who then invite an owner; a token belongs to "
                "one organization."
            ),
            cli="org add",
        ),
        Feature(
            "Delete an organization",
            cli="org delete",
            why=(
                "Deletes everything, so it needs the host and an export; the admin deletes only "
                "empty organizations."
            ),
        ),
        Feature(
            "Export an organization",
            cli="org export",
            why="Writes a folder on the host.",
        ),
        Feature(
            "List and restore recently deleted objects",
            admin="deletion.list deletion.restore deletion!restore_chosen",
            rest="list_deletions restore_deletion",
            cli="org deletions, org restore",
        ),
        Feature(
            "Manage members",
            admin=(
                "membership.list membership.change membership.delete membership!change_role_chosen"
            ),
            rest="list_members get_member update_member remove_member",
            cli="members list, members set-role, members remove",
        ),
        Feature(
            "Add an account as a member",
            admin="membership.add",
            cli="members add",
            why=(
                "Only for platform administrators; owners invite people, so they can't find out "
                "which accounts exist."
            ),
        ),
        Feature(
            "Invite members",
            admin="invitation.list invitation.add",
            rest="list_invitations get_invitation create_invitation",
            cli="members invite",
        ),
        Feature(
            "Resend an invitation",
            admin="invitation.send",
            rest="send_invitation",
            cli="members send-again",
        ),
        Feature(
            "Revoke an invitation",
            admin="invitation.revoke",
            rest="revoke_invitation",
            cli="members revoke",
        ),
        Feature(
            "Send a password reset link",
            admin="membership!offer_chosen",
            rest="create_password_reset",
            cli="members reset-password",
        ),
        Feature(
            "Reset a member's second factor",
            admin="membership!reset_chosen",
            rest="reset_second_factor",
            cli="members reset-second-factor",
        ),
        Feature(
            "View and change your profile",
            admin="profile",
            rest="get_me update_me",
            cli="members set",
        ),
        Feature(
            "Change your email address",
            admin="profile_email profile_confirm_email",
            cli="members set",
            why="Requires opening an emailed link; the command is for platform administrators.",
        ),
        Feature(
            "Manage identity providers",
            admin="provider.list provider.add provider.change provider.delete",
            rest=(
                "list_identity_providers get_identity_provider create_identity_provider "
                "update_identity_provider delete_identity_provider"
            ),
            cli="sso list, sso add, sso set, sso remove",
        ),
        Feature(
            "Refresh an identity provider's keys",
            admin="provider!check_chosen",
            rest="check_identity_provider",
            cli="sso check",
        ),
        Feature(
            "Link an identity provider to your account",
            admin="profile_link profile_unlink",
            why="Requires a person's browser.",
        ),
        Feature(
            "View and end your browser sessions",
            admin="profile_sessions",
            rest="sign_out_elsewhere",
            cli="members sign-out",
        ),
        Feature(
            "Manage users",
            admin="user.list user.add user.change user_password_change",
            why="Accounts belong to the installation, not to an organization.",
        ),
        Feature(
            "View and change tokens",
            admin="token.list token.change",
            rest="list_tokens get_token update_token",
            cli="tokens list, tokens set",
        ),
        Feature(
            "Create a token",
            admin="token.add",
            rest="create_token",
            cli="tokens create",
        ),
        Feature(
            "Revoke a token",
            admin="token.revoke token!revoke_chosen",
            rest="revoke_token",
            cli="tokens revoke",
        ),
        Feature(
            "View and revoke clients that you authorized",
            admin="authorized_clients",
            rest="list_authorized_clients revoke_client",
            cli="tokens list, tokens revoke",
        ),
        Feature(
            "View and remove OAuth clients",
            admin="oauth_clients",
            rest="list_tokens revoke_token",
            cli="tokens list, tokens revoke",
        ),
        Feature(
            "Manage external issuers",
            admin="issuer.list issuer.add issuer.change issuer.delete",
            rest=(
                "list_external_issuers get_external_issuer create_external_issuer "
                "update_external_issuer delete_external_issuer"
            ),
            cli="issuers list, issuers add, issuers set, issuers remove",
        ),
        Feature(
            "Refresh an external issuer's keys",
            admin="issuer!check_chosen",
            rest="check_external_issuer",
            cli="issuers check",
        ),
    ),
)


CONTROL_AREA = Area(
    "Control",
    (
        Feature(
            "View and change an agent's policy",
            admin=(
                "agent.servers agent.tools_preview agent.policy agent.policy_preview "
                "agent.policy_rows agent.restore_policy"
            ),
            rest="get_tool_policy set_tool_policy",
            cli="agents policy",
        ),
        Feature(
            "View and change the organization's policy",
            admin=(
                "organization_policy organization_policy_agents organization_policy_defaults "
                "organization_policy_preview "
                "organization_restore_policy"
            ),
            rest="get_organization_tool_policy set_organization_tool_policy",
            cli="agents policy",
        ),
        Feature(
            "Simulate a policy on past calls",
            admin="agent.simulate organization_simulate",
            rest="simulate_tool_policy simulate_organization_tool_policy",
            cli="audit simulate",
        ),
        Feature(
            "Run a policy in shadow mode",
            admin="agent.policy agent.discard_draft organization_policy",
            rest=(
                "get_tool_policy_draft set_tool_policy_draft discard_tool_policy_draft "
                "get_tool_policy_shadow get_organization_tool_policy_draft "
                "set_organization_tool_policy_draft discard_organization_tool_policy_draft "
                "get_organization_tool_policy_shadow"
            ),
            cli="agents policy, audit simulate",
        ),
        Feature(
            "Enforce a policy from shadow mode",
            admin="agent.enforce_draft organization_policy",
            rest="enforce_tool_policy_draft enforce_organization_tool_policy_draft",
            cli="agents policy",
        ),
        Feature(
            "Manage budgets",
            admin="budget.list budget.add budget.change budget.delete budget.preview",
            rest=(
                "get_budgets set_budgets get_server_budgets set_server_budgets "
                "get_organization_budgets set_organization_budgets"
            ),
            cli="budgets list, budgets set",
        ),
        Feature(
            "View and clear flow labels held between calls",
            rest=(
                "get_agent_flow_labels clear_agent_flow_labels get_token_flow_labels "
                "clear_token_flow_labels"
            ),
            why=(
                "For clients that call tools without a session; admin pages show the labels of "
                "sessions."
            ),
            cli=(
                "agents flow-labels, agents clear-flow-labels, tokens flow-labels, tokens "
                "clear-flow-labels"
            ),
        ),
        Feature(
            "View and clear the labels of an agent's notes and workspace",
            admin="agent.builtin agent.clear_data_labels",
            rest="get_agent_store_labels clear_agent_store_labels",
            cli="agents store-labels, agents clear-store-labels",
        ),
        Feature(
            "Search the audit log",
            admin="auditrow.list",
            rest="list_audit get_audit_entry",
            cli="audit list, audit show",
        ),
        Feature(
            "Suggest names in the filters of the audit log",
            admin="auditrow.names",
            why="API clients list agents, servers, and tools.",
        ),
        Feature(
            "Save and delete audit log filters",
            admin="auditrow.save_filter auditrow.remove_filter",
            why="Saved filters are for people; API clients keep their own parameters.",
        ),
        Feature(
            "Export the audit log",
            admin="auditrow.export",
            rest="export_audit",
            cli="audit export",
        ),
        Feature(
            "Verify the audit log",
            admin="auditrow.verify auditrow.verification",
            cli="audit verify, audit checkpoint",
            why="Checkpoints and keys are on the host; API clients can verify their own exports.",
        ),
        Feature(
            "Prune the audit log",
            cli="audit prune",
            why=(
                "Can't be undone, so it needs the host. Retention prunes the audit log "
                "automatically."
            ),
        ),
        Feature(
            "View and export usage and cost",
            admin="usage",
            rest="get_usage export_usage",
            cli="usage show, usage export",
        ),
        Feature(
            "Rebuild usage",
            cli="usage rebuild",
            why="Repairs the installation.",
        ),
        Feature(
            "Manage notification channels",
            admin="notificationchannel.list notificationchannel.add notificationchannel.change "
            "notificationchannel.delete",
            rest=(
                "list_notification_channels get_notification_channel create_notification_channel "
                "update_notification_channel delete_notification_channel"
            ),
            cli=(
                "notifications channels, notifications add, notifications set, notifications remove"
            ),
        ),
        Feature(
            "Send a test notification",
            admin="notificationchannel.test",
            rest="test_notification_channel",
            cli="notifications test",
        ),
        Feature(
            "List notifications",
            admin="notification.list notification.change",
            rest="list_notifications",
            cli="notifications list",
        ),
        Feature(
            "Resend a notification",
            admin="notification.retry notification!retry_chosen",
            rest="retry_notification",
            cli="notifications retry",
        ),
    ),
)


HOST = "Needs the host: its processes, files, or keys."
SIGHT = "For navigation; the linked pages have rows of their own."

INSTALLATION_AREA = Area(
    "Installation",
    (
        Feature(
            "Start Bonobot's processes",
            cli="up, web, worker, beat",
            why=HOST,
        ),
        Feature(
            "Check the installation",
            admin="settings_check",
            cli="doctor",
            why="For monitoring, use `/readyz?all` and `/metrics`.",
        ),
        Feature(
            "Back up and restore the installation",
            cli="backup, restore",
            why=HOST,
        ),
        Feature(
            "Rotate encryption keys",
            cli="keys status, keys rotate, keys drop",
            why=HOST,
        ),
        Feature(
            "Export and apply the configuration file",
            cli="mcp export, mcp apply",
            why=HOST,
        ),
        Feature(
            "Serve one client over standard input",
            cli="mcp serve",
            why=HOST,
        ),
        Feature(
            "Set up shell completion",
            cli="completion",
            why=HOST,
        ),
        Feature(
            "Change schedules",
            admin="periodictask.list periodictask.change",
            why="Only for platform administrators; deployments use `BONOBOT_*` settings.",
        ),
        Feature(
            "Open the dashboard, search, command palette, and settings",
            admin="index search palette live settings app_list autocomplete",
            why=SIGHT,
        ),
        Feature(
            "Follow the first-run setup",
            admin=(
                "first_run first_run_preset first_run_presets first_run_url first_run_paste "
                "first_run_openapi first_run_operations first_run_form first_run_added"
            ),
            rest="get_first_run update_first_run",
            cli=(
                "first-run show, first-run skip, first-run unskip, first-run hide, first-run unhide"
            ),
        ),
        Feature(
            "Sign in to the admin",
            admin="login logout password_change password_change_done",
            why="API clients use tokens.",
        ),
        Feature(
            "Load parts of Django's pages",
            admin="jsi18n view_on_site",
            why="Not pages of their own.",
        ),
    ),
)
