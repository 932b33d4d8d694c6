"""Names of actors for screens; REST, the command line, and exports show the stored label."""

from django.utils.translation import gettext_lazy as _

# The parts of Bonobot that act by themselves, by the id of their actor.
SYSTEM_ACTOR_NAMES = {
    "access_requests": _("Expiry of access requests"),
    "approvals": _("Expiry of approvals"),
    "connections": _("Connection monitor"),
    "definition_changes": _("Definition change"),
    "health": _("Health check"),
    "notices": _("Change notification"),
    "oauth": _("Sign-ins to servers"),
    "questions": _("Expiry of elicitation requests"),
    "registry": _("Public registry"),
    "retention": _("Audit log retention"),
    "scanning": _("Definition scan"),
    "session_start": _("Session start"),
    "sessions": _("Session monitor"),
}


def get_actor_name(kind: str, actor_id: str, label: str) -> str:
    """Return the name of an actor in the reader's language; a stored label is untrusted text."""
    if kind == "system" and actor_id in SYSTEM_ACTOR_NAMES:
        return str(SYSTEM_ACTOR_NAMES[actor_id])
    return (label or actor_id).removeprefix(f"{kind}:")
