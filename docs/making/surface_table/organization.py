"""Rows of organization, control, installation."""

from docs.making.surface_table.types import Area, Deed

ORGANIZATION_AREA = Area(
    "Organization",
    (
        Deed(
            "See and set what holds for all",
            admin="organization.list organization.change",
            rest="get_organization change_organization",
            cli="org show, org set",
        ),
        Deed(
            "Stop everything, and go on",
            admin="organization_halt",
            rest="halt_organization resume_organization",
            cli="org halt, org resume",
        ),
        Deed(
            "Choose the organization to work in",
            admin="switch_organization",
            why="Every request names its own (`Bonobot-Organization`), and every verb (`--org`).",
        ),
        Deed(
            "Add an organization",
            admin="organization.add",
            why="A platform administrator's, who then invites its owner; a token is of one.",
            cli="org add",
        ),
        Deed(
            "Remove an organization",
            cli="org delete",
            why="Everything goes: on the host, after an export; in the admin only an empty one.",
        ),
        Deed(
            "Take an organization along",
            cli="org export",
            why="A folder on the host.",
        ),
        Deed(
            "Members",
            admin="membership.list membership.change membership.delete",
            rest="list_members get_member change_member remove_member",
            cli="members list, members set-role, members remove",
        ),
        Deed(
            "Add an account as a member",
            admin="membership.add",
            cli="members add",
            why="A platform administrator's: others invite, and learn of no account.",
        ),
        Deed(
            "Invite people",
            admin="invitation.list invitation.add",
            rest="list_invitations get_invitation invite",
            cli="members invite",
        ),
        Deed(
            "Send an invitation again",
            admin="invitation.send",
            rest="send_invitation",
            cli="members send-again",
        ),
        Deed(
            "Revoke an invitation",
            admin="invitation.revoke",
            rest="revoke_invitation",
            cli="members revoke",
        ),
        Deed(
            "Let a member choose a new password",
            admin="membership!offer_chosen",
            rest="offer_password_reset",
            cli="members reset-password",
        ),
        Deed(
            "Reset a lost second factor",
            admin="membership!reset_chosen",
            rest="reset_second_factor",
            cli="members reset-second-factor",
        ),
        Deed(
            "One's own profile",
            admin="profile",
            rest="get_me change_me",
            cli="members set",
        ),
        Deed(
            "One's own e-mail address",
            admin="profile_email profile_proof",
            cli="members set",
            why="A link that is mailed proves it; the command line's is a platform administrator.",
        ),
        Deed(
            "Identity providers that people sign in by",
            admin="provider.list provider.add provider.change provider.delete",
            rest=(
                "list_identity_providers get_identity_provider add_identity_provider "
                "change_identity_provider remove_identity_provider"
            ),
            cli="sso list, sso add, sso set, sso remove",
        ),
        Deed(
            "Ask an identity provider for its keys",
            admin="provider!check_chosen",
            rest="check_identity_provider",
            cli="sso check",
        ),
        Deed(
            "Link a provider's account to one's own",
            admin="profile_link profile_unlink",
            why="A person's browser has to go there.",
        ),
        Deed(
            "Where one is signed in, and out of it",
            admin="profile_sessions",
            rest="sign_out_elsewhere",
            cli="members sign-out",
        ),
        Deed(
            "People",
            admin="user.list user.add user.change user_password_change",
            why="People are the installation's, of no organization.",
        ),
        Deed(
            "Tokens",
            admin="token.list token.change",
            rest="list_tokens get_token change_token",
            cli="tokens list, tokens set",
        ),
        Deed(
            "Make a token",
            admin="token.add",
            rest="create_token",
            cli="tokens create",
        ),
        Deed(
            "Revoke tokens",
            admin="token!revoke_chosen",
            rest="revoke_token",
            cli="tokens revoke",
        ),
        Deed(
            "See and end what one let programs do",
            admin="let_in",
            rest="list_let_in end_let_in",
            cli="tokens list, tokens revoke",
        ),
        Deed(
            "See the programs that people let in, remove one",
            admin="programs",
            rest="list_tokens revoke_token",
            cli="tokens list, tokens revoke",
        ),
        Deed(
            "Issuers whose tokens are taken",
            admin="issuer.list issuer.add issuer.change issuer.delete",
            rest=(
                "list_token_issuers get_token_issuer add_token_issuer change_token_issuer "
                "remove_token_issuer"
            ),
            cli="issuers list, issuers add, issuers set, issuers remove",
        ),
        Deed(
            "Ask an issuer for its keys",
            admin="issuer!check_chosen",
            rest="check_token_issuer",
            cli="issuers check",
        ),
    ),
)


CONTROL_AREA = Area(
    "Control",
    (
        Deed(
            "An agent's policy",
            admin="agent.policy agent.policy_preview agent.policy_rows",
            rest="get_tool_policy set_tool_policy",
            cli="agents policy",
        ),
        Deed(
            "The organization's policy",
            admin="organization_policy",
            rest="get_organization_tool_policy set_organization_tool_policy",
            cli="agents policy",
        ),
        Deed(
            "Try a policy on past calls",
            admin="agent.what_if organization_what_if",
            rest="replay_tool_policy replay_organization_tool_policy",
            cli="audit replay",
        ),
        Deed(
            "A policy that runs in the shadow",
            admin="agent.policy agent.discard_draft organization_policy",
            rest=(
                "get_tool_policy_draft set_tool_policy_draft discard_tool_policy_draft "
                "get_tool_policy_shadow get_organization_tool_policy_draft "
                "set_organization_tool_policy_draft discard_organization_tool_policy_draft "
                "get_organization_tool_policy_shadow"
            ),
            cli="agents policy, audit replay",
        ),
        Deed(
            "Make the shadow the policy",
            admin="agent.enforce_draft organization_policy",
            rest="enforce_tool_policy_draft enforce_organization_tool_policy_draft",
            cli="agents policy",
        ),
        Deed(
            "Budgets",
            admin="budget.list budget.add budget.change budget.delete",
            rest=(
                "get_budgets set_budgets get_server_budgets set_server_budgets "
                "get_organization_budgets set_organization_budgets"
            ),
            cli="budgets list, budgets set",
        ),
        Deed(
            "Flow labels that are held between calls",
            rest="get_agent_held clear_agent_held get_token_held clear_token_held",
            why="Of programs that call tools without a session; pages show what sessions hold.",
            cli="agents held, agents clear-held, tokens held, tokens clear-held",
        ),
        Deed(
            "Labels that an agent's notes and workspace carry",
            admin="agent.builtin agent.clear_data_labels",
            rest="get_agent_store_labels clear_agent_store_labels",
            cli="agents store-labels, agents clear-store-labels",
        ),
        Deed(
            "The audit",
            admin="auditrow.list",
            rest="list_audit get_audit_entry",
            cli="audit list",
        ),
        Deed(
            "Filters of the audit that are kept under a name",
            admin="auditrow.save_filter auditrow.remove_filter",
            why="A person's own ways of looking; a program keeps its own parameters.",
        ),
        Deed(
            "Export the audit",
            admin="auditrow.export",
            rest="export_audit",
            cli="audit export",
        ),
        Deed(
            "Verify the audit",
            admin="auditrow.verify auditrow.verification",
            cli="audit verify, audit heads",
            why="A program compares what it exported itself; heads and keys are the host's.",
        ),
        Deed(
            "Prune the audit",
            cli="audit prune",
            why="Can't be undone: for whoever has the host. Retention does it by itself.",
        ),
        Deed(
            "Usage and cost",
            admin="usage",
            rest="get_usage export_usage",
            cli="usage show, usage export",
        ),
        Deed(
            "Count usage again",
            cli="usage rebuild",
            why="Repairs the installation.",
        ),
        Deed(
            "Channels of notices",
            admin="notificationchannel.list notificationchannel.add notificationchannel.change "
            "notificationchannel.delete",
            rest=(
                "list_notice_channels get_notice_channel add_notice_channel "
                "change_notice_channel remove_notice_channel"
            ),
            cli="notices channels, notices add, notices set, notices remove",
        ),
        Deed(
            "Test a channel",
            admin="notificationchannel.test",
            rest="test_notice_channel",
            cli="notices test",
        ),
        Deed(
            "Notices",
            admin="notification.list notification.change",
            rest="list_notices",
            cli="notices list",
        ),
        Deed(
            "Send a notice again",
            admin="notification.retry notification!retry_chosen",
            rest="retry_notice",
            cli="notices retry",
        ),
    ),
)


HOST = "Needs the host: its processes, files or keys."
SIGHT = "A page that leads people; what it leads to has its own row."

INSTALLATION_AREA = Area(
    "Installation",
    (
        Deed(
            "Start programs",
            cli="up, web, worker, beat",
            why=HOST,
        ),
        Deed(
            "Look for faults",
            admin="settings_check",
            cli="doctor",
            why="Programs ask `/readyz?all` and `/metrics`, which say it in numbers.",
        ),
        Deed(
            "Save and put back everything",
            cli="backup, restore",
            why=HOST,
        ),
        Deed(
            "Keys of sealed values",
            cli="keys status, keys rotate, keys drop",
            why=HOST,
        ),
        Deed(
            "The configuration as a file",
            cli="mcp export, mcp apply",
            why=HOST,
        ),
        Deed(
            "Serve one client over standard input",
            cli="mcp serve",
            why=HOST,
        ),
        Deed(
            "Complete words in the shell",
            cli="completion",
            why=HOST,
        ),
        Deed(
            "When periodic work runs",
            admin="periodictask.list periodictask.change",
            why="A platform administrator's; files set it by `BONOBOT_*`.",
        ),
        Deed(
            "The dashboard, search, the palette",
            admin="index search palette app_list autocomplete",
            why=SIGHT,
        ),
        Deed(
            "The first run",
            admin=(
                "first_run first_run_preset first_run_presets first_run_paste first_run_openapi "
                "first_run_operations first_run_form"
            ),
            rest="get_first_run change_first_run",
            cli=(
                "first-run show, first-run skip, first-run take-up, first-run hide, "
                "first-run unhide"
            ),
        ),
        Deed(
            "Signing in to the admin",
            admin="login logout password_change password_change_done",
            why="Programs have tokens.",
        ),
        Deed(
            "What Django's pages need",
            admin="jsi18n view_on_site",
            why="Parts of pages.",
        ),
    ),
)
