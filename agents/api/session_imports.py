"""REST of session imports."""

from drf_spectacular.utils import OpenApiExample, extend_schema_field, extend_schema_serializer
from rest_framework import serializers
from rest_framework.response import Response

from agents.api.agents import AgentView
from agents.api.sessions import SessionSerializer
from agents.sessions.session_import import import_session
from agents.sessions.session_import_file import UnusableSessionFile, read_session
from bonobot.accounts.api.openapi_schema import describe_operation
from bonobot.accounts.roles import Action
from bonobot.core.api.serializers import StrictSerializer

_EXAMPLE_STEPS = [
    {"seq": 1, "kind": "message", "state": "done", "text": "What time is it?", "by": "ann"},
    {"seq": 2, "kind": "model", "state": "done", "turn": 1, "text": "It is noon."},
]


@extend_schema_field({"type": "object", "additionalProperties": True})
class SessionFileField(serializers.JSONField):
    """The JSON export of a session."""


@extend_schema_serializer(
    examples=[
        OpenApiExample(
            "An exported session",
            {"session": {"version": 1, "title": "Time", "status": "done", "steps": _EXAMPLE_STEPS}},
        )
    ]
)
class ImportSessionBody(StrictSerializer):
    """A session to import."""

    session = SessionFileField(
        help_text="The JSON export of a session (`GET /api/sessions/{id}/export?as=json`)."
    )


class ImportSessionView(AgentView):
    """Import of an exported session."""

    rules = {"POST": Action.RUN_AGENTS}
    agent_token_methods = ("POST",)
    http_method_names = ["post"]

    @describe_operation(
        "import_session", body=ImportSessionBody, answer=SessionSerializer, status=201
    )
    def post(self, request: object, agent_id: str) -> Response:
        """Import an exported session as a finished one; nothing runs until its next message."""
        agent = self.get_agent(agent_id)
        try:
            file = read_session(self.read_body(ImportSessionBody)["session"])
        except UnusableSessionFile as problem:
            problem.field = f"session.{problem.field}".rstrip(".")
            raise
        return self.respond_row(
            import_session(self.principal, agent, file), SessionSerializer, status=201
        )
