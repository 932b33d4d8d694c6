"""What people say in a session, what they attach, and the session written down."""

from django.http import HttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiParameter
from rest_framework.response import Response

from agents.api.messages import AgainBody, MessageBody
from agents.api.sessions import SessionResource, SessionShape
from agents.attachments import from_base64
from agents.pictures import as_answer, kept_of
from agents.sessions.exporting import MEDIA_TYPES, as_file
from agents.sessions.requests import send, send_again
from bonobot.tenancy.api.resources import READ_OR_RUN
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.roles import Action

EXPORT_AS = OpenApiParameter("as", str, enum=list(MEDIA_TYPES), description="Default: `markdown`.")


class Messages(SessionResource):
    """Messages to a session."""

    rules = {"POST": Action.RUN_AGENTS}
    narrowed = ("POST",)

    @operation("send_message", body=MessageBody, answer=SessionShape, status=202)
    def post(self, request: object, session_id: str) -> Response:
        """Send a message; a resting session goes on, a running one takes it up next."""
        session = self.session(session_id)
        body = self.read(MessageBody)
        files = from_base64(body.get("attachments", ()))
        send(self.principal, session, body["message"], files)
        return self.answer(session, status=202)


class SendAgain(SessionResource):
    """A message that is sent anew, in its place."""

    rules = {"POST": Action.RUN_AGENTS}
    narrowed = ("POST",)

    @operation("retry_message", body=AgainBody, answer=SessionShape, status=202)
    def post(self, request: object, session_id: str) -> Response:
        """Send a message anew, as it was or in other words, in a session that rests.

        It takes the place of the earlier one and of all behind it: those steps stay, the new
        message names the first of them (`replaces`), and the agent is told of none of them.
        """
        session = self.session(session_id)
        body = self.read(AgainBody)
        files = from_base64(body.get("attachments", ()))
        send_again(self.principal, session, body.get("seq"), body.get("message"), files)
        return self.answer(session, status=202)


class SessionExport(SessionResource):
    """A session written down."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    http_method_names = ["get"]

    @operation(
        "export_session",
        answer={
            (200, "text/markdown"): OpenApiTypes.STR,
            (200, "application/json"): OpenApiTypes.OBJECT,
        },
        parameters=[EXPORT_AS],
    )
    def get(self, request: object, session_id: str) -> HttpResponse:
        """Return a whole session, as Markdown for people or as JSON with every step."""
        session = self.session(session_id)
        return as_file(session, self.request.query_params.get("as", "markdown"))


class SessionFile(SessionResource):
    """A text file that somebody attached to a message."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    http_method_names = ["get"]

    @operation("get_session_file", answer={(200, "text/plain"): OpenApiTypes.STR})
    def get(self, request: object, session_id: str, sha256: str) -> HttpResponse:
        """Show a text file of a message (`files`)."""
        return as_answer(kept_of(self.session(session_id), sha256, what="files"))
