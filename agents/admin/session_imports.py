"""Import of an exported session on the tab *Sessions* of an agent."""

from typing import Any

from django.contrib import messages
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.urls import reverse
from django.utils.translation import gettext as _t

from agents.admin.agents import AgentAdmin
from agents.sessions.session_import import import_session
from agents.sessions.session_import_file import MAX_FILE_BYTES, parse_session_file
from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput


@AgentAdmin.add_object_action("import_session", needs=Action.RUN_AGENTS)
def handle_import(visit: ObjectRequest) -> HttpResponseBase:
    """Import the uploaded JSON export and show the session."""
    file: Any = visit.request.FILES.get("file")
    if file is None:
        raise InvalidInput(
            "No file was selected.", field="file", remedy="Select the JSON export of a session."
        )
    content = bytes(file.read(MAX_FILE_BYTES + 1))
    session = import_session(visit.principal, visit.object, parse_session_file(content))
    messages.success(visit.request, _t("Imported. Send a message to continue the session."))
    return HttpResponseRedirect(reverse("admin:agents_session_change", args=(session.pk,)))
