"""What is asked of the door, and what comes of it: plain values that every surface shares."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal
from uuid import UUID, uuid4

from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import Principal

Method = Literal["tools/call", "resources/read", "prompts/get", "completion/complete"]


class Refused(Problem):
    """The door refused the call; `rule` says which rule, `remedy` what to do next."""

    code = "denied_by_policy"
    status = 403
    title = "The call was refused"


class Superseded(Problem):
    """Somebody else acts for this caller now, so nothing was sent."""

    code = "superseded"
    status = 409
    title = "Somebody else makes this call"


@dataclass(frozen=True, kw_only=True)
class Request:
    """One call as it is asked for: of an agent's, or (no agent) of a server's own.

    `tool` names what is asked for: the tool as the caller knows it; for `resources/read` a URI, for
    `prompts/get` a prompt's own name. A completion names the prompt or the template as its `ref`
    does, and its `arguments` are MCP's own members (`ref`, `argument`, `context`). All but
    `tools/call` name the server too. `holder` names who owns the connection (`session:…`,
    `server:…`); `client` is what the caller's program says that it is. `unapproved` lets somebody
    who may approve definitions try one that waits. `may_send` is asked in the last moment before
    something leaves: a caller whose right to act has run out sends nothing any more.
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
    parent_id: UUID | None = None
    call_id: UUID = field(default_factory=uuid4)
    timeout_s: float | None = None
    unapproved: bool = False
    client: str = ""
    may_send: Callable[[], Awaitable[bool]] | None = None
    on_progress: Callable[[float, float | None, str | None], Awaitable[None]] | None = None

    @property
    def noun(self) -> str:
        """What is asked for: a tool, a resource or a prompt."""
        if self.method == "completion/complete":
            ref = self.arguments.get("ref")
            of_prompt = isinstance(ref, dict) and ref.get("type") == "ref/prompt"
            return "prompt" if of_prompt else "resource"
        return {"resources/read": "resource", "prompts/get": "prompt"}.get(self.method, "tool")


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What came of an admitted call.

    `outcome` is ok, error or unknown (sent, not answered in time); `text` is the result as models
    see it, cleaned and bounded; `result` is the upstream's own JSON. `sanitized` counts what was
    removed from the text or made inert, `flagged` what in it reads like orders, each by rule.
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
