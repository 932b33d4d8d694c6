"""Following a session: its events as a stream."""

import json
from collections.abc import AsyncIterator
from contextlib import aclosing
from time import monotonic
from uuid import UUID

from django.http import StreamingHttpResponse
from drf_spectacular.types import OpenApiTypes
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from agents.api.sessions import AFTER, SessionResource, seq_in
from agents.session_labels import label_reader_of
from agents.sessions.events import Event
from agents.sessions.watching import follow
from bonobot.lib.runtime import runtime
from bonobot.tenancy.api.resources import READ_OR_RUN
from bonobot.tenancy.api.schema import operation
from bonobot.tenancy.principals import Principal

KEEPALIVE_S = 15.0
# Then the client comes again with the last id, and whether it still may is asked anew.
LONGEST_STREAM_S = 600.0
EVENT_STREAM = "text/event-stream"

LAST_EVENT_ID = OpenApiParameter(
    "Last-Event-ID",
    int,
    OpenApiParameter.HEADER,
    description="The last id that was seen; the stream goes on behind it.",
)
STREAM = OpenApiResponse(
    OpenApiTypes.STR,
    description="Events: `message`, `model`, `call`, `notice`, `end` are steps (`data` is the "
    "step, and the one with an `id` is final); `text` adds to the text of a step that isn't final "
    "(`seq`, `at`: behind so many characters, `text`); `progress` says how far a call has come "
    "(`seq`, `done`, `total`, `message`); `state` how the session stands (`status`); `rest`, the "
    "last, what came of it.",
    examples=[
        OpenApiExample(
            "A finished call",
            'id: 3\nevent: call\ndata: {"seq": 3, "kind": "call", "state": "done"}\n\n',
        )
    ],
)


class SessionEvents(SessionResource):
    """The event stream of a session."""

    rules = {"GET": READ_OR_RUN}
    narrowed = ("GET",)
    http_method_names = ["get"]

    @operation(
        "follow_session",
        answer={(200, EVENT_STREAM): STREAM},
        parameters=[LAST_EVENT_ID, AFTER],
    )
    def get(self, request: object, session_id: str) -> StreamingHttpResponse:
        """Follow a session until it rests (server-sent events).

        Steps that are not final come without an id, as often as they change: put them in each
        other's place by `seq`. A stream that broke, or ended after ten minutes without `rest`, goes
        on with the last id in `Last-Event-ID`, wherever it stood: what isn't final comes again as
        it stands then. `after` is for the first time, where a browser can't send a header.
        """
        session = self.session(session_id)
        if last := self.request.headers.get("Last-Event-ID"):
            after = seq_in(last, "Last-Event-ID")
        else:
            after = seq_in(self.request.query_params.get("after", "0"), "after")
        events = stream(session.pk, after, self.principal)
        response = StreamingHttpResponse(events, content_type=EVENT_STREAM)
        response["Cache-Control"] = "no-store"
        response["X-Accel-Buffering"] = "no"
        return response


async def stream(
    session_id: UUID, after_seq: int, principal: Principal | None = None
) -> AsyncIterator[bytes]:
    """Yield the session's events as server-sent events, and a comment where nothing happens.

    A token that reads them holds from then on what the session holds.
    """
    began = spoken = monotonic()
    async with aclosing(follow(session_id, after_seq)) as looks:
        async for events in looks:
            if events:
                if principal is not None and principal.kind == "token":
                    await runtime().orm(label_reader_of, principal, session_id)
                yield b"".join(map(written, events))
                spoken = monotonic()
            elif monotonic() - spoken >= KEEPALIVE_S:
                yield b": still here\n\n"
                spoken = monotonic()
            if monotonic() - began >= LONGEST_STREAM_S:
                return


def written(event: Event) -> bytes:
    """Return one event as it stands in the stream; JSON has no line breaks."""
    number = f"id: {event.id}\n" if event.id is not None else ""
    return f"{number}event: {event.kind}\ndata: {json.dumps(event.data)}\n\n".encode()
