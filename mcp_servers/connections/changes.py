"""Change notices: a server's word that what it declares is no longer what it was.

In the modern era they come on a stream that was asked for (`subscriptions/listen`), whose first
frame says what was granted and whose frames all carry its number; in the handshake era they come by
themselves. None is replayed, so whoever missed some reads the lists again (MCP 2026-07-28,
Subscriptions).
"""

from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args
from uuid import UUID

from bonobot.lib.sayings import say
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.eras import METHOD_NOT_FOUND
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.wire import Request

Topic = Literal["tools", "prompts", "resources"]

LISTEN = "subscriptions/listen"
ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
WATCHED = "resourceSubscriptions"
SUBSCRIPTION_ID = "io.modelcontextprotocol/subscriptionId"
TOPICS: tuple[Topic, ...] = get_args(Topic)
LISTS: dict[str, Topic] = {f"notifications/{topic}/list_changed": topic for topic in TOPICS}
MEMBERS: dict[Topic, str] = {topic: f"{topic}ListChanged" for topic in TOPICS}
LONGEST_URI = 2048
# What a server answers that has no streams for this.
REFUSALS = (404, 405)
# Between two frames of a stream, so that a flood waits at the server instead of taking our loop.
BREATH_S = 0.01


@dataclass(frozen=True)
class ChangeNotice:
    """The list of `topic` changed; with `uri`, that one resource did.

    `holder` is whose connection it came on, where lists may differ between connections; blank
    where it holds for everybody.
    """

    topic: Topic
    uri: str = ""
    holder: str = ""


# Called on the loop and must return at once.
OnNotice = Callable[[UUID, ChangeNotice], None]
Hear = Callable[[ChangeNotice], None]
OnOpen = Callable[[frozenset[Topic]], Awaitable[None]]


_listeners: list[OnNotice] = []


def tell(*listeners: OnNotice) -> None:
    """Have the change notices of this process's connections told to all of `listeners`."""
    _listeners[:] = listeners


def on_notice(server_id: UUID, notice: ChangeNotice) -> None:
    """Tell a change notice to whoever takes those of this process."""
    for listener in _listeners:
        listener(server_id, notice)


def notifiable(capabilities: Any) -> frozenset[Topic]:
    """Return the lists whose changes a server says that it tells."""
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    return frozenset(topic for topic in TOPICS if _member(declared.get(topic), "listChanged"))


def tells_updates(capabilities: Any) -> bool:
    """Tell whether a server says that it tells when single resources change."""
    declared = capabilities if isinstance(capabilities, Mapping) else {}
    return _member(declared.get("resources"), "subscribe")


def listen_request(topics: Collection[Topic], uris: Collection[str] = ()) -> Request:
    """Return the request whose answer is a stream of notices about lists and single resources."""
    wanted: dict[str, Any] = {MEMBERS[topic]: True for topic in TOPICS if topic in topics}
    if uris:
        wanted[WATCHED] = list(uris)
    return Request(LISTEN, {"notifications": wanted})


def notice_in(message: Mapping[str, Any], holder: str = "") -> ChangeNotice | None:
    """Return the change notice that a message is, if it is one."""
    method = str(message.get("method"))
    if method in LISTS:
        return ChangeNotice(LISTS[method], holder=holder)
    params = message.get("params")
    uri = params.get("uri") if method == UPDATED and isinstance(params, Mapping) else None
    if isinstance(uri, str) and 0 < len(uri) <= LONGEST_URI:
        return ChangeNotice("resources", uri, holder)
    return None


def subscription_of(message: Mapping[str, Any]) -> int | None:
    """Return the number of the request whose stream a frame belongs to; None for no frame."""
    params = message.get("params")
    meta = params.get("_meta") if isinstance(params, Mapping) else None
    found = meta.get(SUBSCRIPTION_ID) if isinstance(meta, Mapping) else None
    return found if type(found) is int else None


def is_of(message: Mapping[str, Any], number: int) -> bool:
    """Say whether a frame belongs to the subscription that request `number` asked for."""
    return subscription_of(message) == number


def granted(message: Mapping[str, Any]) -> frozenset[Topic] | None:
    """Return what an acknowledgement grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    honoured = params.get("notifications")
    return frozenset(topic for topic, member in MEMBERS.items() if _member(honoured, member))


def granted_uris(message: Mapping[str, Any]) -> frozenset[str] | None:
    """Return the resources that an acknowledgement grants; None if the message is none."""
    params = message.get("params")
    if message.get("method") != ACKNOWLEDGED or not isinstance(params, Mapping):
        return None
    honoured = params.get("notifications")
    uris = honoured.get(WATCHED) if isinstance(honoured, Mapping) else None
    return frozenset(uri for uri in uris or () if isinstance(uri, str))


def refuses(error: UpstreamError) -> bool:
    """Say whether a server that answers like this has no streams of notices at all."""
    return error.rpc_code == METHOD_NOT_FOUND or error.http_status in REFUSALS


def not_offered(endpoint: Endpoint) -> UpstreamError:
    """Return the error of a server that tells no changes, whatever it declares."""
    return UpstreamError(
        say("`{endpoint}` offers no stream of change notices.", endpoint=endpoint.name),
        code="not_offered",
        server=endpoint.name,
        remedy="What it offers is read again from time to time; refresh it to see a change now.",
    )


def _member(value: Any, name: str) -> bool:
    return isinstance(value, Mapping) and value.get(name) is True
