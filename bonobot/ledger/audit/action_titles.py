"""Titles of audit actions, which the audit log stores as codes.

Most titles are the code in words. Codes are stored in hash chains and never change, so those that
use an older word than the screens have their title here.
"""

from django.utils.translation import gettext as _t

ACTION_TITLES = {
    "agent_added": "agent created",
    "agent_callees_changed": "callable agents updated",
    "agent_changed": "agent updated",
    "agent_given": "agent access changed",
    "agent_removed": "agent deleted",
    "approval_withdrawn": "definition approval revoked",
    "audit_filter_removed": "audit filter deleted",
    "audit_pruned": "audit log pruned",
    "call_approval_expired": "approval request expired",
    "call_taken_back": "approval request canceled",
    "definitions_labelled": "definitions labeled",
    "email_changed": "email address changed",
    "grant_ended": "client access revoked",
    "grant_given": "client access granted",
    "held_labels_cleared": "flow labels cleared",
    "issuer_added": "external issuer added",
    "issuer_changed": "external issuer updated",
    "issuer_removed": "external issuer deleted",
    "keys_dropped": "old keys deleted",
    "keys_rotation_begun": "key rotation started",
    "launcher_removed": "launcher deleted",
    "member_changed": "member updated",
    "member_joined_by_provider": "member joined through identity provider",
    "model_endpoint_added": "model endpoint created",
    "model_endpoint_changed": "model endpoint updated",
    "model_endpoint_removed": "model endpoint deleted",
    "model_endpoint_test": "model endpoint tested",
    "note_added": "note created",
    "note_changed": "note updated",
    "note_removed": "note deleted",
    "notes_cleared": "notes deleted",
    "notice_channel_added": "notification channel created",
    "notice_channel_changed": "notification channel updated",
    "notice_channel_removed": "notification channel deleted",
    "notice_retried": "notification retried",
    "oauth_connected": "OAuth connected",
    "oauth_disconnected": "OAuth disconnected",
    "oauth_revoked": "OAuth token revoked",
    "oauth_unregistered": "OAuth client unregistered",
    "organization_halted": "kill switch enabled",
    "organization_resumed": "kill switch disabled",
    "password_reset_offered": "password reset link created",
    "preset_changed": "preset updated",
    "preset_removed": "preset deleted",
    "profile_changed": "profile updated",
    "program_removed": "OAuth client deleted",
    "provider_added": "identity provider added",
    "provider_changed": "identity provider updated",
    "provider_removed": "identity provider deleted",
    "question_answered": "elicitation request answered",
    "question_expired": "elicitation request expired",
    "recording_removed": "recording deleted",
    "schedule_changed": "schedule updated",
    "server_asking_changed": "server request permissions updated",
    "server_bound": "server attached",
    "server_credentials_refused": "server credentials rejected",
    "server_lost": "server connection lost",
    "server_priced": "server prices updated",
    "server_removed": "server deleted",
    "server_unbound": "server detached",
    "session_grant_revoked": "session approval revoked",
    "sign_in_refused": "sign-in rejected",
    "signed_out_elsewhere": "other sessions signed out",
    "skill_added": "skill created",
    "skill_changed": "skill updated",
    "skill_removed": "skill deleted",
    "token_changed": "token updated",
    "token_refused": "token rejected",
    "tool_policy_changed": "tool policy updated",
    "tool_policy_drafted": "tool policy draft created",
    "trigger_added": "trigger created",
    "trigger_changed": "trigger updated",
    "trigger_removed": "trigger deleted",
    "user_added": "user created",
    "user_changed": "user updated",
    "workflow_added": "workflow created",
    "workflow_changed": "workflow updated",
    "workflow_removed": "workflow deleted",
    "workspace_emptied": "workspace cleared",
    "workspace_labelled": "workspace labeled",
    "session_labelled": "session labeled",
}


def get_action_title(code: str) -> str:
    """Return the English title of an action, which is the key of its translations."""
    return ACTION_TITLES.get(code) or code.replace("_", " ")


def format_action(code: str) -> str:
    """Return the title of an action in the reader's language."""
    return _t(get_action_title(code))
