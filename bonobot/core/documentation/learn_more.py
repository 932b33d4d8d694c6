"""Pages and sections of the documentation that the admin's pages link to."""

from collections.abc import Mapping

ERRORS_PAGE = "reference/refusals"  # generated: see `reference`
# By the URL name of a page in the admin, or the start of several names: a page of the
# documentation and, after `#`, the anchor of a section.
LINKS: Mapping[str, str] = {
    "first_run": "first-steps",
    "agents_accessrequest": "approvals#access-requests",
    "agents_agent": "how-to/admin",
    "agents_agent_builtin": "built-in-tools#enable-toolsets",
    "agents_agent_clients": "gateway",
    "agents_agent_notes": "notes",
    "agents_agent_policy": "policies#rules",
    "agents_agent_recording": "evaluation#recordings",
    "agents_agent_servers": "policies#rules",
    "agents_agent_simulate": "replay#simulate-a-policy",
    "agents_approval": "approvals#what-an-approval-covers",
    "agents_budget": "limits#budgets",
    "agents_elicitationrequest": "server-requests#elicitation-requests",
    "agents_modelendpoint": "models",
    "agents_session": "sessions",
    "agents_skill": "skills",
    "agents_workflow": "workflows",
    "agents_workflow_triggers": "workflows#triggers",
    "ledger_auditrow": "audit#read-the-log",
    "mcp_servers_preset": "concepts#review-while-adding",
    "mcp_servers_server": "concepts#definitions-and-reviews",
    "mcp_servers_server_data_labels": "flow-labels#labels-of-stored-data",
    "mcp_servers_server_definitions": "concepts#definitions-and-reviews",
    "mcp_servers_server_paste": "importing#supported-files",
    "mcp_servers_server_prompts": "resources-and-prompts",
    "mcp_servers_server_resources": "resources-and-prompts",
    "mcp_servers_server_tools": "flow-labels#set-labels",
    "notices_notification": "notifications",
    "organization_kill_switch": "policies#kill-switches",
    "organization_policy": "policies#order-of-decision",
    "organization_simulate": "replay#the-organizations-policy",
    "tenancy_invitation": "people#invitations",
    "tenancy_issuer": "tokens#external-issuers",
    "tenancy_membership": "roles",
    "tenancy_provider": "people#single-sign-on",
    "tenancy_token": "tokens#scopes",
    "oauth_clients": "tokens#oauth-clients",
    "usage": "audit#usage-and-cost",
}


def find_documentation(url_name: str) -> str:
    """Return what documents a page of the admin, by the longest match; blank: the first page."""
    starts = [start for start in LINKS if url_name == start or url_name.startswith(f"{start}_")]
    return LINKS[max(starts, key=len)] if starts else ""


def build_documentation_url(target: str) -> str:
    """Return the URL of a page, or of a section after `#`; blank for the first page."""
    return f"/docs/{target}"


def build_error_code_url(code: str) -> str:
    """Return the URL of an error code in the reference."""
    return build_documentation_url(f"{ERRORS_PAGE}#{code}")
