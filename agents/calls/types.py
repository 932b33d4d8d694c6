"""Requests, contexts, outcomes and errors of the call pipeline."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from agents.budgets.limits import BudgetLimit
from agents.calls.definitions import ServerFacts
from agents.calls.result_text import ResultText
from agents.calls.root_limits import RootSession
from agents.calls.snapshots import CallSnapshot, Target
from agents.policies.decisions import PolicyDecision
from bonobot.accounts.principals import Principal
from bonobot.core.db.fields import generate_uuid7
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.records import record
from bonobot.core.text.masking import Masker
from bonobot.ledger.types import Admission, ApprovalReference
from bonobot.ledger.types import Outcome as LedgerOutcome
from mcp_servers.client.answer_server_requests import Host
from mcp_servers.client.jsonrpc import OnLog
from mcp_servers.schemas.classify_schema import ValueSize

NO_TEXT = ResultText("")

Method = Literal["tools/call", "resources/read", "prompts/get", "completion/complete"]


class CallRefused(Problem):
    """The call was refused; `rule` names the rule, `remedy` says what to do next."""

    code = "denied_by_policy"
    status = 403
    title = "Call denied"


class CallSuperseded(Problem):
    """Another process took over the caller, so nothing was sent."""

    code = "superseded"
    status = 409
    title = "Superseded by another process"


class CallIncomplete(Exception):
    """A call made by a built-in tool is still pending, and so is the tool's own call."""

    def __init__(self, outcome: "CallOutcome") -> None:
        super().__init__(outcome.code)
        self.outcome = outcome


class OutcomeUnrecorded(Problem):
    """The call was made, but its outcome can't be recorded yet; it will be later."""

    code = "outcome_unrecorded"
    status = 503
    title = "Call made, outcome not recorded"

    def __init__(self, cause: Problem) -> None:
        super().__init__(
            format_message(
                "The call was made, but its outcome couldn't be recorded. {cause}", cause=cause
            ),
            remedy="Check the result of the call before you retry it.",
        )


@record(kw_only=True)
class CallContinuation:
    """How to continue a call whose server asked for input or returned a task.

    `earlier_call_ids` are those of its earlier round trips, `extra_params` are added to the
    parameters. A task is polled every `poll_s` seconds until `ends_at`; `updates` are the responses
    it waits for, and `answered_keys` the keys of all requests that it has, or now gets, responses
    to.
    """

    pending_call_id: UUID
    earlier_call_ids: frozenset[UUID]
    ends_at: datetime
    extra_params: Mapping[str, Any] = field(default_factory=dict)
    task_id: str = ""
    poll_s: float = 0.0
    updates: Mapping[str, Any] = field(default_factory=dict)
    answered_keys: frozenset[str] = frozenset()


@record(kw_only=True)
class RelayOptions:
    """Options of a call for an MCP client that handles the server's input requests itself.

    `meta` are the client's own fields of `_meta`, without hop-by-hop ones. `extra_params` are added
    to the parameters (responses and their request state), `earlier_call_ids` are those of its
    earlier round trips, and `allowed_requests` names the requests that the client can handle.
    `on_log` gets the server's log messages for the client `log_subscriber`.
    """

    meta: Mapping[str, Any] = field(default_factory=dict)
    extra_params: Mapping[str, Any] = field(default_factory=dict)
    earlier_call_ids: frozenset[UUID] = frozenset()
    allowed_requests: frozenset[str] = frozenset()
    on_log: OnLog | None = None
    log_subscriber: str = ""


@record(kw_only=True)
class CallRequest:
    """One requested call, through an agent or (without an agent) directly to a server.

    `tool` is the tool's name as the caller knows it; for `resources/read` a URI, for `prompts/get`
    the prompt's own name. A completion names the prompt or template of its `ref`, and its
    `arguments` are MCP's own fields (`ref`, `argument`, `context`). All methods but `tools/call`
    need `server_id`. `holder` owns the connection (`session:…`, `server:…`); `folder` is attached
    to the session. `is_catalog_tool` names a tool of the gateway's search view, which the agent
    itself doesn't have; `is_by_model`: a model named the tool, so it must be one for models.
    `client` is the client's self-reported name. `allow_unapproved` lets a reviewer try a
    definition that is pending review. `parent_id` is the call, and `turn_id` the model turn, that
    requested this one. `root` is set if another session started this one.
    `may_send` is awaited just before sending: a caller that lost its lease must not send. `host`
    handles requests of the server, `continuation` marks a later round trip of a call, and
    `stopping` is set when the caller's process stops, which ends a long poll of a task and the wait
    for a child session. `relay` is set if an MCP client gets the
    result unchanged. `repeats` are the ids under which the same call was admitted before: its
    approval is valid for all of them. `principal_generation` is the policy generation of a cached
    principal; `renew_principal` reads it again and raises `BadToken` if its token is no longer
    valid.
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
    turn_id: UUID | None = None
    call_id: UUID = field(default_factory=generate_uuid7)
    repeats: frozenset[UUID] = frozenset()
    timeout_s: float | None = None
    allow_unapproved: bool = False
    client: str = ""
    folder: str = ""
    is_catalog_tool: bool = False
    is_by_model: bool = False
    principal_generation: int | None = None
    renew_principal: Callable[[], Awaitable[Principal]] | None = None
    may_send: Callable[[], Awaitable[bool]] | None = None
    stopping: asyncio.Event | None = None
    host: Host | None = None
    continuation: CallContinuation | None = None
    relay: RelayOptions | None = None
    on_progress: Callable[[float, float | None, str | None], Awaitable[None]] | None = None

    @property
    def label_session_id(self) -> UUID | None:
        """The session that holds the flow labels: the root session if there is one."""
        return self.root.session_id if self.root else self.session_id

    @property
    def earlier_call_ids(self) -> frozenset[UUID]:
        """The ids of the earlier round trips and attempts of this call."""
        continuation = self.continuation or self.relay
        return self.repeats | (continuation.earlier_call_ids if continuation else frozenset())

    @property
    def noun(self) -> str:
        """The kind of target: `tool`, `resource` or `prompt`."""
        if self.method == "completion/complete":
            ref = self.arguments.get("ref")
            is_prompt = isinstance(ref, dict) and ref.get("type") == "ref/prompt"
            return "prompt" if is_prompt else "resource"
        return {"resources/read": "resource", "prompts/get": "prompt"}.get(self.method, "tool")


@record(kw_only=True)
class CallOutcome:
    """The outcome of an admitted call.

    `outcome` is ok, error or unknown (sent, not answered in time); `text` is the result as models
    see it, cleaned and limited in size; `result` is the server's JSON. `sanitized` counts what was
    removed from the text or escaped, `flagged` what reads like instructions, each by rule.
    `instructs` means that the text is a trusted instruction of the organization's own people.
    """

    call_id: UUID
    outcome: str
    text: str
    result: dict[str, Any]
    duration_ms: int
    code: str = ""
    remedy: str = ""
    # Why it is unknown whether the call ran, as a sentence.
    cause: str = ""
    cost_microusd: int = 0
    server_name: str = ""
    own_name: str = ""
    sanitized: Mapping[str, int] = field(default_factory=dict)
    flagged: Mapping[str, int] = field(default_factory=dict)
    instructs: bool = False
    # Set while the call is pending: the pending call that continues it.
    pending_call_id: UUID | None = None
    # The server's JSON-RPC error, if any: `code`, `message` and `data`.
    error: Mapping[str, Any] | None = None
    # About how many characters the result has; 0 if it isn't known.
    result_size: int = 0
    # Whether the result is known to have no hidden characters.
    is_visible: bool = False

    @property
    def is_error(self) -> bool:
        """Whether the call is reported to the model as failed."""
        return self.outcome != "ok"

    def as_dict(self) -> dict[str, Any]:
        """Return the outcome for REST and the command line."""
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


@dataclass(frozen=True, slots=True)
class ApprovalGrant:
    """What allows a call that requires approval, with the details of its audit entry.

    `approval` is the one-time approval that the call spends; None if it is already spent by the
    same call, or if the tool is approved for the session.
    """

    details: Mapping[str, str]
    approval: ApprovalReference | None = None


@dataclass(slots=True, eq=False)
class CallContext:
    """One call: `make_call` creates it, and each stage adds what later stages need.

    `request` is the caller's, with the principal and the tool's listed name as of the snapshot.
    """

    request: CallRequest
    # Set by `prepare_call`; a newer snapshot replaces it and what was resolved with it.
    snapshot: CallSnapshot = field(init=False)
    # The organization's secrets as of then.
    masker: Masker = field(init=False)
    # Set by `resolve_target`; `server` and `deadline_ms` stay empty for built-in tools.
    is_resolved: bool = False
    target: Target = field(init=False)
    server: ServerFacts | None = None
    deadline_ms: int = 0
    # Set by `check_call_arguments`.
    arguments_size: ValueSize | None = None
    # Set by `decide_call`, `require_approval`, `load_root_limits`, and `build_admission`.
    decision: PolicyDecision = field(init=False)
    grant: ApprovalGrant | None = None
    root_limits: tuple[BudgetLimit, ...] = ()
    admission: Admission = field(init=False)
    # Set by `inspect_result` and its caller, by `save_pending_call`, or by `record_failure`; until
    # something else is known, the call was canceled.
    outcome: LedgerOutcome = "unknown"
    code: str = "cancelled"
    result_text: ResultText = NO_TEXT
    result: dict[str, Any] = field(default_factory=dict)
    audit_details: dict[str, Any] = field(default_factory=dict)
    # Set by `record_failure`.
    remedy: str = ""
    cause: str = ""
    error: dict[str, Any] | None = None
    # Set by `forward_call` before the server, or the built-in tool, can receive the call.
    sent: bool = False
    answered: bool = False
    # Set by `make_call`: without the time in which the server waited for a person or a model.
    duration_ms: int = 0
    answer_wait_ms: int = 0
    # Set by `inspect_result`: about how many characters the result has; 0 if it wasn't inspected.
    result_size: int = 0
    # Whether it is known to have no hidden characters.
    is_visible: bool = False
    # Set by `save_pending_call`.
    pending_call_id: UUID | None = None
    # Set by `settle_call`.
    amounts: dict[str, int] = field(default_factory=dict)
