"""Titles of audit actions, which the audit log stores as codes."""

from django.utils.translation import gettext as _t

from bonobot.ledger.audit.renamed_codes import RENAMED_ACTIONS

# A title is the code in words, with these exceptions.
ACTION_TITLES = {
    "agent_model_turn": "model turn",
    "sign_in_rejected": "sign-in rejected",
    "audit_pruned": "audit log pruned",
    "email_changed": "email address changed",
    "member_joined_by_provider": "member joined through identity provider",
    "oauth_client_deleted": "OAuth client deleted",
    "oauth_connected": "OAuth connected",
    "oauth_disconnected": "OAuth disconnected",
    "oauth_revoked": "OAuth token revoked",
    "oauth_unregistered": "OAuth client unregistered",
}


def get_action_title(code: str) -> str:
    """Return the English title of an action, which is the key of its translations."""
    code = RENAMED_ACTIONS.get(code, code)
    return ACTION_TITLES.get(code) or code.replace("_", " ")


def format_action(code: str) -> str:
    """Return the title of an action in the reader's language."""
    return _t(get_action_title(code))
