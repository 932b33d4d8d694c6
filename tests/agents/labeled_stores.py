"""An organization with unreachable servers, and callers whose calls are only admitted.

The labels of a call are decided at its admission, so no server has to answer. The labels of the
server `office` are set; those of the stores are suggested.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agents.calls.pipeline import admit_call
from agents.calls.root_limits import RootSession
from agents.calls.types import CallContext, CallRequest, RelayOptions
from agents.flow_labels.services import clear_agent_labels, clear_token_labels
from agents.models import Agent, Session
from agents.services import attach_server
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.types import Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.effective_labels import load_label_context, set_labels, suggest_labels
from mcp_servers.models import Definition, Server
from tests import admin_client, factories

BOTH = (FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT)
APPROVAL_REQUIRED = "approval_required"
TEXT = {"type": "string"}
# The tools of `office`: description, arguments, and the labels set by a reviewer.
OFFICE: dict[str, tuple[str, dict[str, Any], tuple[FlowLabel, ...]]] = {
    "read_mail": ("Read a mail.", {}, BOTH),
    "read_payroll": ("Read the payroll.", {}, (FlowLabel.PRIVATE_DATA,)),
    "search_web": ("Search the web.", {"query": TEXT}, (FlowLabel.UNTRUSTED_CONTENT,)),
    "post_message": ("Post a message.", {"text": TEXT}, (FlowLabel.SENDS_OUT,)),
}
# The tools of a store, with suggested labels.
RECORDS: dict[str, dict[str, Any]] = {
    "create_record": {"description": "Create a record.", "text": TEXT},
    "edit_record": {"description": "Edit a record.", "text": TEXT},
    "get_record": {"description": "Get a record.", "name": TEXT},
    "list_records": {"description": "List the records."},
    "frobnicate": {"description": "Frobnicates.", "text": TEXT},
    "index": {"text": TEXT},
    "manage_records": {"action": {"enum": ["list", "delete", "create"]}, "text": TEXT},
    "query_records": {"sql": TEXT},
    "save_record": {"description": "Save.", "text": TEXT, "hints": {"readOnlyHint": True}},
    "fetch_record": {"description": "Fetch.", "name": TEXT, "hints": {"readOnlyHint": False}},
    "calculate_sum": {"description": "Calculate a sum.", "expression": TEXT},
    "search_web": {"description": "Search the web.", "query": TEXT},
}


@dataclass(frozen=True)
class Caller:
    """A caller in a session, or with a token or without one."""

    principal: Principal
    agent: Agent | None = None
    session: Session | None = None
    token: Token | None = None
    root: RootSession | None = None

    def use(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        extra_params: Any = None,
        **options: Any,
    ) -> str:
        """Request the admission of a call; return the code of its denial, or an empty string.

        An admitted call ends at once.
        """
        try:
            end_call(self.start_call(tool, arguments, extra_params=extra_params, **options))
        except Problem as problem:
            return problem.code
        return ""

    def start_call(
        self,
        tool: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        extra_params: Any = None,
        **options: Any,
    ) -> CallContext:
        """Admit a call, and leave it running; raises the `Problem` of its denial."""
        fields: dict[str, Any] = {
            "principal": self.principal,
            "agent_id": self.agent.pk if self.agent else None,
            "session_id": self.session.pk if self.session else None,
            "root": self.root,
            "via": "rest",
            "holder": "server:tests",
            "relay": RelayOptions(extra_params=extra_params) if extra_params else None,
        }
        request = CallRequest(tool=tool, arguments=dict(arguments or {}), **(fields | options))
        context = CallContext(request)
        get_runtime().call(admit_call, context)
        return context

    def read_labeled_data(self) -> "Caller":
        """Read private data and untrusted content."""
        assert self.use("mcp_office_read_mail") == ""
        return self

    def try_to_send(self) -> str:
        """Call a tool with an external effect; return the code of its denial."""
        return self.use("mcp_office_post_message", {"text": "x"})


def end_call(call: CallContext) -> None:
    """Record that an admitted call succeeded."""
    opening = call.admission.opening
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=opening.organization_id,
        outcome="ok",
        duration_ms=0,
    )
    assert get_writer().settle_call(settlement).result()


@dataclass
class World:
    """An organization with an agent and the servers `office` and `records`."""

    acme: Organization
    helper: Agent
    office: Server = field(init=False)
    records: Server = field(init=False)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000)))

    def __post_init__(self) -> None:
        self.administrator = factories.build_administrator(self.acme)
        self.office = admin_client.create_web_server(self.acme, "office")
        for name, (description, arguments, _labels) in OFFICE.items():
            declare_tool(self.office, name, {"description": description, **arguments})
        self.records = self.create_store("records")
        approve_definitions(self.administrator, self.office)
        rows = {row.name: row for row in self.office.definitions.all()}
        for name, (_description, _arguments, labels) in OFFICE.items():
            set_labels(self.administrator, self.office, [rows[name]], labels)
        attach_server(self.administrator, self.helper, self.office)

    def create_store(self, name: str, *agents: Agent) -> Server:
        """Create a store of records and attach it to agents (default: the helper)."""
        server = admin_client.create_web_server(self.acme, name)
        for tool, declaration in RECORDS.items():
            declare_tool(server, tool, declaration)
        admin_client.declare_tool(
            server, "note://all", kind=Definition.Kind.RESOURCE, uri="note://all"
        )
        admin_client.declare_tool(server, "recall", kind=Definition.Kind.PROMPT)
        template = {"kind": Definition.Kind.RESOURCE_TEMPLATE, "uriTemplate": "note://one/{name}"}
        admin_client.declare_tool(server, "note://one/{name}", **template)
        approve_definitions(self.administrator, server)
        context = load_label_context(server)
        rows_by_labels: dict[tuple[str, ...], list[Definition]] = {}
        for row in server.definitions.filter(kind=Definition.Kind.TOOL):
            # For HTTP servers, tools that write are suggested to have an external effect.
            if FlowLabel.SENDS_OUT in (labels := suggest_labels(row, context)):
                remaining = tuple(label for label in labels if label != FlowLabel.SENDS_OUT)
                rows_by_labels.setdefault(remaining, []).append(row)
        for labels_to_set, rows in rows_by_labels.items():
            set_labels(self.administrator, server, rows, labels_to_set)
        for agent in agents or (self.helper,):
            self.attach_store(server, agent)
        return server

    def attach_store(self, server: Server, agent: Agent) -> None:
        """Attach a store with all its definitions to an agent."""
        resources = ["note://all", "note://one/{name}"]
        attach_server(
            self.administrator,
            agent,
            server,
            allowed_resources=resources,
            allowed_prompts=["recall"],
        )

    def create_agent(self) -> Agent:
        """Create another agent with the same servers."""
        agent = factories.create_agent(self.acme, f"agent{next(self.numbers)}")
        attach_server(self.administrator, agent, self.office)
        self.attach_store(self.records, agent)
        return agent

    def start_session(self, agent: Agent | None = None) -> Caller:
        """Start a session of an agent, without labels."""
        agent = agent or self.helper
        session = Session.objects.create(organization=self.acme, agent=agent, title="x")
        return Caller(self.administrator, agent, session)

    def start_child(self, parent: Caller) -> Caller:
        """Start a child session."""
        assert parent.session is not None
        session = Session.objects.create(
            organization=self.acme,
            agent=self.helper,
            title="x",
            parent=parent.session,
            root_id=parent.session.pk,
            depth=1,
        )
        root = RootSession(parent.session.pk, parent.session.agent_id)
        return replace(self.start_session(), session=session, root=root)

    def issue_token(self, agent: Agent | None = None, role: Role = Role.MEMBER) -> Caller:
        """Issue a token for an agent; its calls have no session."""
        agent = agent or self.helper
        token, _text = create_token(
            self.administrator, name=f"token{next(self.numbers)}", role=role, agent_ids=[agent.pk]
        )
        return Caller(build_token_principal(token), agent, token=token)

    def issue_organization_token(self, role: Role = Role.OWNER) -> tuple[Caller, str]:
        """Issue a token that isn't limited to agents; return it with its text."""
        token, text = create_token(self.administrator, name=f"token{next(self.numbers)}", role=role)
        return Caller(build_token_principal(token), self.helper, token=token), text

    def clear_caller_labels(self, *callers: Caller) -> None:
        """Clear the labels of agents and tokens, so that only stores have labels."""
        for agent in Agent.objects.filter(organization=self.acme):
            clear_agent_labels(self.administrator, agent)
        for caller in callers:
            if caller.token is not None:
                clear_token_labels(self.administrator, caller.token)


def declare_tool(server: Server, name: str, declaration: Mapping[str, Any]) -> None:
    """Declare a tool of a server with its description and arguments."""
    arguments = {
        key: value
        for key, value in declaration.items()
        if isinstance(value, dict) and key != "hints"
    }
    schema = {"type": "object", "properties": arguments}
    fields: dict[str, Any] = {"inputSchema": schema, "annotations": declaration.get("hints", {})}
    admin_client.declare_tool(
        server, name, description=declaration.get("description", ""), **fields
    )


@contextmanager
def create_world(acme: Organization, helper: Agent) -> Iterator[World]:
    """Create the organization, and close the ledger's writer at the end."""
    yield World(acme, helper)
    get_writer().close()
