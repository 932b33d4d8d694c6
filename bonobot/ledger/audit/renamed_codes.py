"""Codes and audit actions that were renamed after version 0.1.

Entries of the audit log are in its hash chain and keep the old names, as do recordings and
sessions. Filters and titles treat both names as one.
"""

from collections.abc import Mapping, Set

RENAMED_ACTIONS = {
    "agent_added": "agent_created",
    "agent_callees_changed": "callable_agents_updated",
    "agent_changed": "agent_updated",
    "agent_given": "agent_access_updated",
    "agent_removed": "agent_deleted",
    "approval_withdrawn": "definition_approval_revoked",
    "audit_filter_removed": "audit_filter_deleted",
    "budgets_changed": "budgets_updated",
    "call_approval_expired": "approval_request_expired",
    "call_taken_back": "approval_request_canceled",
    "definitions_labelled": "definitions_labeled",
    "grant_ended": "client_access_revoked",
    "grant_given": "client_access_granted",
    "held_labels_cleared": "flow_labels_cleared",
    "issuer_added": "external_issuer_created",
    "issuer_changed": "external_issuer_updated",
    "issuer_removed": "external_issuer_deleted",
    "keys_dropped": "old_keys_deleted",
    "keys_rotation_begun": "key_rotation_started",
    "launcher_added": "launcher_created",
    "launcher_removed": "launcher_deleted",
    "member_changed": "member_updated",
    "model_endpoint_added": "model_endpoint_created",
    "model_endpoint_changed": "model_endpoint_updated",
    "model_endpoint_removed": "model_endpoint_deleted",
    "model_endpoint_test": "model_endpoint_tested",
    "note_added": "note_created",
    "note_changed": "note_updated",
    "note_removed": "note_deleted",
    "notes_cleared": "notes_deleted",
    "notice_channel_added": "notification_channel_created",
    "notice_channel_changed": "notification_channel_updated",
    "notice_channel_removed": "notification_channel_deleted",
    "notice_retried": "notification_retried",
    "organization_changed": "organization_updated",
    "organization_halted": "kill_switch_enabled",
    "organization_resumed": "kill_switch_disabled",
    "password_reset_offered": "password_reset_link_created",
    "preset_added": "preset_created",
    "preset_changed": "preset_updated",
    "preset_removed": "preset_deleted",
    "profile_changed": "profile_updated",
    "program_removed": "oauth_client_deleted",
    "provider_added": "identity_provider_created",
    "provider_changed": "identity_provider_updated",
    "provider_removed": "identity_provider_deleted",
    "question_answered": "elicitation_request_answered",
    "question_expired": "elicitation_request_expired",
    "recording_removed": "recording_deleted",
    "schedule_changed": "schedule_updated",
    "server_added": "server_created",
    "server_asking_changed": "server_request_permissions_updated",
    "server_bound": "server_attached",
    "server_changed": "server_updated",
    "server_credentials_refused": "server_credentials_rejected",
    "server_lost": "server_connection_lost",
    "server_priced": "server_prices_updated",
    "server_removed": "server_deleted",
    "server_unbound": "server_detached",
    "session_grant_revoked": "session_approval_revoked",
    "session_labelled": "session_labeled",
    "sign_in_refused": "sign_in_rejected",
    "signed_out_elsewhere": "other_sessions_signed_out",
    "skill_added": "skill_created",
    "skill_changed": "skill_updated",
    "skill_removed": "skill_deleted",
    "token_changed": "token_updated",
    "token_refused": "token_rejected",
    "tool_policy_changed": "tool_policy_updated",
    "tool_policy_drafted": "tool_policy_draft_created",
    "trigger_added": "trigger_created",
    "trigger_changed": "trigger_updated",
    "trigger_removed": "trigger_deleted",
    "user_added": "user_created",
    "user_changed": "user_updated",
    "workflow_added": "workflow_created",
    "workflow_changed": "workflow_updated",
    "workflow_removed": "workflow_deleted",
    "workspace_emptied": "workspace_cleared",
    "workspace_labelled": "workspace_labeled",
}
RENAMED_CODES = {
    "already_there": "already_exists",
    "asks_too_often": "too_many_server_requests",
    "backup_unfit": "invalid_backup",
    "builtin_off": "builtin_disabled",
    "call_over": "call_ended",
    "call_taken": "call_already_opened",
    "credential_needed": "credential_required",
    "definition_refused": "definition_rejected",
    "denied_by_binding": "denied_by_attachment",
    "encoding_refused": "encoding_rejected",
    "host_refused": "host_denied",
    "identity_refused": "identity_rejected",
    "keys_given": "keys_managed_externally",
    "last_way_in": "last_sign_in_method",
    "link_ended": "link_invalid",
    "login_refused": "login_rejected",
    "mail_unavailable": "email_unavailable",
    "mail_unset": "email_not_configured",
    "member_already": "already_member",
    "method_refused": "method_denied",
    "needless_exception": "redundant_exception",
    "not_bound": "not_attached",
    "not_ticked": "not_selected",
    "not_yours": "not_owner",
    "nothing_chosen": "nothing_selected",
    "operation_not_chosen": "operation_not_selected",
    "operation_refused": "operation_rejected",
    "provider_refused": "provider_denied",
    "question_expired": "elicitation_request_expired",
    "redirect_refused": "redirect_denied",
    "schema_refused": "schema_rejected",
    "sign_in_lost": "sign_in_expired",
    "skill_not_given": "skill_not_attached",
    "sso_needed": "sso_required",
    "sso_untried": "sso_not_tested",
    "state_foreign": "state_mismatch",
    "token_refused": "token_rejected",
    "unknown_kit": "unknown_toolset",
}


def add_old_codes(codes: Set[str]) -> frozenset[str]:
    return frozenset(codes) | {old for old, new in RENAMED_CODES.items() if new in codes}


def list_action_names(action: str) -> list[str]:
    """Return an action, given by its old or new name, with the other names."""
    return _list_names(RENAMED_ACTIONS, action)


def list_code_names(code: str) -> list[str]:
    """Return a code, given by its old or new name, with the other names."""
    return _list_names(RENAMED_CODES, code)


def _list_names(renamed: Mapping[str, str], name: str) -> list[str]:
    new_name = renamed.get(name, name)
    return [new_name, *(old for old, new in renamed.items() if new == new_name)]
