"""CallRequest, CallOutcome, Refused, Continuation, Relay, Root."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from agents.calls.root_limits import RootSession
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from mcp_servers.client.host import Host
from mcp_servers.client.jsonrpc import OnLog

Method = Literal["tools/call", "resources/read", "prompts/get", "completion/complete"]


class CallRefused(Problem):
    """The door refused the call; `rule` says which rule, `remedy` what to do next."""

    code = "denied_by_policy"
    status = 403
    title = "The call was refused"


class CallSuperseded(Problem):
    """Somebody else acts for this caller now, so nothing was sent."""

    code = "superseded"
    status = 409
    title = "Somebody else makes this call"


class CallIncomplete(Exception):
    """A built-in tool's own call isn't over yet, so the tool's isn't either: both go on by it."""

    def __init__(self, outcome: "CallOutcome") -> None:
        super().__init__(outcome.code)
        self.outcome = outcome


class OutcomeUnrecorded(Problem):
    """The call was made, and what came of it can't be written now; it will be, later."""

    code = "outcome_unrecorded"
    status = 503
    title = "The call was made, its outcome could not be written"

    def __init__(self, cause: Problem) -> None:
        super().__init__(
            format_message(
                "The call was made, but its outcome could not be written. {cause}", cause=cause
            ),
            remedy="Look what it did before you make it again.",
        )


@dataclass(frozen=True, kw_only=True)
class CallContinuation:
    """How a call goes on that its server answered with a request for input, or with a task.

    `legs` are the calls that it was before, `more` is sent beside what is asked for. A task is
    looked at each `poll_s` seconds, until `ends_at`; `updates` are answers that it waits for, and
    `answered` the keys of all that it has or gets.
    """

    exchange_id: UUID
    legs: frozenset[UUID]
    ends_at: datetime
    more: Mapping[str, Any] = field(default_factory=dict)
    task_id: str = ""
    poll_s: float = 0.0
    updates: Mapping[str, Any] = field(default_factory=dict)
    answered: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class RelayOptions:
    """A call for a program of somebody else's, which goes on by itself with what servers ask for.

    `meta` are the caller's own members of `_meta`, none of a hop; `more` is sent beside what is
    asked for (answers and the state that they belong to); `legs` are the calls that it was before.
    `may_ask` names what the caller can be asked, by methods' names.
    """

    meta: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)
    legs: frozenset[UUID] = frozenset()
    may_ask: frozenset[str] = frozenset()
    on_log: OnLog | None = None


@dataclass(frozen=True, kw_only=True)
class CallRequest:
    """One call as it is asked for: of an agent's, or (no agent) of a server's own.

    `tool` names what is asked for: the tool as the caller knows it; for `resources/read` a URI, for
    `prompts/get` a prompt's own name. A completion names the prompt or the template as its `ref`
    does, and its `arguments` are MCP's own members (`ref`, `argument`, `context`). All but
    `tools/call` name the server too. `holder` names who owns the connection (`session:…`,
    `server:…`); `folder` is one that was attached for its session. `client` is what the caller's
    program says that it is. `unapproved` lets somebody who may approve definitions try one that
    waits. `root` is there in a session that another one began. `may_send` is asked in the last
    moment before something leaves: a caller whose right to act has run out sends nothing any more.
    `host` answers what the server asks back, `continues` says that this is a further leg of a call,
    and `leaving` whether the caller wants a long look at a task to end. `relay` is there where the
    result goes on to another program as it is. A principal that was kept is of a policy generation;
    `renewed` reads it again, and raises `BadToken` where its token has ended.
    """

    principal: Principal
    tool: str
    arguments: dict[str, Any]
    via: str
    holder: str
    method: Method = "tools/call"
    agent_id: UUID | None = None
    server_id: UUID | None = None
    session_id: UUID | None = None
    root: RootSession | None = None
    parent_id: UUID | None = None
    call_id: UUID = field(default_factory=generate_uuid7)
    timeout_s: float | None = None
    unapproved: bool = False
    client: str = ""
    folder: str = ""
    principal_generation: int | None = None
    renewed: Callable[[], Awaitable[Principal]] | None = None
    may_send: Callable[[], Awaitable[bool]] | None = None
    leaving: Callable[[], bool] | None = None
    host: Host | None = None
    continues: CallContinuation | None = None
    relay: RelayOptions | None = None
    on_progress: Callable[[float, float | None, str | None], Awaitable[None]] | None = None

    @property
    def holding_session(self) -> UUID | None:
        """The session that holds the flow labels: that of the root, where there is one."""
        return self.root.session_id if self.root else self.session_id

    @property
    def legs(self) -> frozenset[UUID]:
        """The calls that this one was before."""
        going_on = self.continues or self.relay
        return going_on.legs if going_on else frozenset()

    @property
    def noun(self) -> str:
        """What is asked for: a tool, a resource or a prompt."""
        if self.method == "completion/complete":
            ref = self.arguments.get("ref")
            of_prompt = isinstance(ref, dict) and ref.get("type") == "ref/prompt"
            return "prompt" if of_prompt else "resource"
        return {"resources/read": "resource", "prompts/get": "prompt"}.get(self.method, "tool")


@dataclass(frozen=True, kw_only=True)
class CallOutcome:
    """What came of an admitted call.

    `outcome` is ok, error or unknown (sent, not answered in time); `text` is the result as models
    see it, cleaned and bounded; `result` is the upstream's own JSON. `sanitized` counts what was
    removed from the text or made inert, `flagged` what in it reads like orders, each by rule.
    `instructs`: the text is our own people's words to the model, no data from outside.
    """

    call_id: UUID
    outcome: str
    text: str
    result: dict[str, Any]
    duration_ms: int
    code: str = ""
    remedy: str = ""
    cost_microusd: int = 0
    server_name: str = ""
    own_name: str = ""
    sanitized: Mapping[str, int] = field(default_factory=dict)
    flagged: Mapping[str, int] = field(default_factory=dict)
    instructs: bool = False
    # The call isn't over: it goes on by this, once what it waits for is there.
    exchange_id: UUID | None = None
    # What the server answered where it answered with an error: `code`, `message` and its `data`.
    error: Mapping[str, Any] | None = None

    @property
    def is_error(self) -> bool:
        """Tell whether the model is told that the call failed."""
        return self.outcome != "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome as REST and the command line show it."""
        return {
            "call_id": str(self.call_id),
            "outcome": self.outcome,
            "is_error": self.is_error,
            "text": self.text,
            "result": self.result,
            "code": self.code,
            "remedy": self.remedy,
            "duration_ms": self.duration_ms,
            "cost_microusd": self.cost_microusd,
            "server": self.server_name,
            "tool": self.own_name,
            "sanitized": dict(self.sanitized),
            "flagged": dict(self.flagged),
        }
