"""Control: policies, budgets, what happened."""

from bonobot.surfaces.deeds import Area, Deed

AREA = Area(
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
            admin="channel.list channel.add channel.change channel.delete",
            rest=(
                "list_notice_channels get_notice_channel add_notice_channel "
                "change_notice_channel remove_notice_channel"
            ),
            cli="notices channels, notices add, notices set, notices remove",
        ),
        Deed(
            "Test a channel",
            admin="channel.test",
            rest="test_notice_channel",
            cli="notices test",
        ),
        Deed(
            "Notices",
            admin="notice.list notice.change",
            rest="list_notices",
            cli="notices list",
        ),
        Deed(
            "Send a notice again",
            admin="notice.retry notice!retry_chosen",
            rest="retry_notice",
            cli="notices retry",
        ),
    ),
)
