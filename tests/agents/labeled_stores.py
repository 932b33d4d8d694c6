"""A small office of servers that nobody reaches, and callers whose calls are only admitted.

What a call passes on is decided where it is admitted, so no server has to answer. Labels of the
office's own tools are set; those of the stores are the suggested ones.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from agents.calls.check_and_admit import admit_call
from agents.calls.root_limits import RootSession
from agents.calls.types import CallRequest, RelayOptions
from agents.flow_labels.services import clear_agent_labels, clear_token_labels
from agents.models import Agent, Session
from agents.services import attach_server
from bonobot.accounts.models import Organization, Token
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels import FlowLabel
from mcp_servers.flow_labels.services import load_label_context, set_labels, suggest_labels
from mcp_servers.models import Definition, Server
from tests import admin_client, factories

BOTH = (FlowLabel.PRIVATE_DATA, FlowLabel.UNTRUSTED_CONTENT)
ASKED = "approval_required"
TEXT = {"type": "string"}
# Of each tool of the office: what it says, its arguments, the labels that a reviewer has set.
OFFICE: dict[str, tuple[str, dict[str, Any], tuple[FlowLabel, ...]]] = {
    "read_mail": ("Read a mail.", {}, BOTH),
    "read_payroll": ("Read the payroll.", {}, (FlowLabel.PRIVATE_DATA,)),
    "search_web": ("Search the web.", {"query": TEXT}, (FlowLabel.UNTRUSTED_CONTENT,)),
    "post_message": ("Post a message.", {"text": TEXT}, (FlowLabel.SENDS_OUT,)),
}
# A store that says nothing about itself but its tools' names; labels are the suggested ones.
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
    """Somebody who makes calls: in a session, or with a token and without one."""

    principal: Principal
    agent: Agent | None = None
    session: Session | None = None
    token: Token | None = None
    root: RootSession | None = None

    def use(
        self, tool: str, arguments: Mapping[str, Any] | None = None, *, more: Any = None, **how: Any
    ) -> str:
        """Have a call admitted; return the code of its refusal, blank where it may run."""
        asked: dict[str, Any] = {
            "principal": self.principal,
            "agent_id": self.agent.pk if self.agent else None,
            "session_id": self.session.pk if self.session else None,
            "root": self.root,
            "via": "rest",
            "holder": "server:tests",
            "relay": RelayOptions(extra_params=more) if more else None,
        }
        request = CallRequest(tool=tool, arguments=dict(arguments or {}), **(asked | how))
        try:
            get_runtime().call(admit_call, request)
        except Problem as problem:
            return problem.code
        return ""

    def under_labels(self) -> "Caller":
        """Have read private data and what anybody wrote."""
        assert self.use("mcp_office_read_mail") == ""
        return self

    def sends(self) -> str:
        """Try to send something out."""
        return self.use("mcp_office_post_message", {"text": "x"})


@dataclass
class World:
    """An organization with an agent, an office, and a store of records in its pool."""

    acme: Organization
    helper: Agent
    office: Server = field(init=False)
    records: Server = field(init=False)
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(1, 1_000)))

    def __post_init__(self) -> None:
        self.boss = factories.build_administrator(self.acme)
        self.office = admin_client.web_server(self.acme, "office")
        for name, (description, arguments, _labels) in OFFICE.items():
            offer(self.office, name, {"description": description, **arguments})
        self.records = self.store("records")
        approve_definitions(self.boss, self.office)
        for name, (_description, _arguments, labels) in OFFICE.items():
            set_labels(self.boss, self.office, [*self.office.definitions.filter(name=name)], labels)
        attach_server(self.boss, self.helper, self.office)

    def store(self, name: str, *agents: Agent) -> Server:
        """Add a store of records and give it to agents: the helper, if nobody is named."""
        server = admin_client.web_server(self.acme, name)
        for tool, said in RECORDS.items():
            offer(server, tool, said)
        admin_client.offer(server, "note://all", kind=Definition.Kind.RESOURCE, uri="note://all")
        admin_client.offer(server, "recall", kind=Definition.Kind.PROMPT)
        template = {"kind": Definition.Kind.RESOURCE_TEMPLATE, "uriTemplate": "note://one/{name}"}
        admin_client.offer(server, "note://one/{name}", **template)
        approve_definitions(self.boss, server)
        known = load_label_context(server)
        for row in server.definitions.filter(kind=Definition.Kind.TOOL):
            # It is reached over HTTP, where what changes something is taken to send it out.
            if FlowLabel.SENDS_OUT in (found := suggest_labels(row, known)):
                rest = [label for label in found if label != FlowLabel.SENDS_OUT]
                set_labels(self.boss, server, [row], rest)
        for agent in agents or (self.helper,):
            self.give(server, agent)
        return server

    def give(self, server: Server, agent: Agent) -> None:
        """Give an agent all of a server."""
        ticked = ["note://all", "note://one/{name}"]
        attach_server(
            self.boss, agent, server, allowed_resources=ticked, allowed_prompts=["recall"]
        )

    def colleague(self) -> Agent:
        """Make another agent with the same servers."""
        agent = factories.create_agent(self.acme, f"agent{next(self.numbers)}")
        attach_server(self.boss, agent, self.office)
        self.give(self.records, agent)
        return agent

    def session(self, agent: Agent | None = None) -> Caller:
        """Begin a session of an agent's that has seen nothing."""
        agent = agent or self.helper
        session = Session.objects.create(organization=self.acme, agent=agent, title="x")
        return Caller(self.boss, agent, session)

    def child(self, of: Caller) -> Caller:
        """Begin a session that another one asked for."""
        assert of.session is not None
        session = Session.objects.create(
            organization=self.acme,
            agent=self.helper,
            title="x",
            parent=of.session,
            root_id=of.session.pk,
            depth=1,
        )
        root = RootSession(of.session.pk, of.session.agent_id)
        return replace(self.session(), session=session, root=root)

    def token(self, agent: Agent | None = None, role: Role = Role.MEMBER) -> Caller:
        """Issue a token for an agent; its calls have no session."""
        agent = agent or self.helper
        token, _text = create_token(
            self.boss, name=f"token{next(self.numbers)}", role=role, agent_ids=[agent.pk]
        )
        return Caller(build_token_principal(token), agent, token=token)

    def bearer(self, role: Role = Role.OWNER) -> tuple[Caller, str]:
        """Issue a token that is narrowed to no agent; return it with its text."""
        token, text = create_token(self.boss, name=f"token{next(self.numbers)}", role=role)
        return Caller(build_token_principal(token), self.helper, token=token), text

    def forget_callers(self, *callers: Caller) -> None:
        """Let go of what agents and tokens hold, so that only stores can bring it back."""
        for agent in Agent.objects.filter(organization=self.acme):
            clear_agent_labels(self.boss, agent)
        for caller in callers:
            if caller.token is not None:
                clear_token_labels(self.boss, caller.token)


def offer(server: Server, name: str, said: Mapping[str, Any]) -> None:
    """Let a server offer a tool by what it says and its arguments."""
    arguments = {key: one for key, one in said.items() if isinstance(one, dict) and key != "hints"}
    schema = {"type": "object", "properties": arguments}
    declared: dict[str, Any] = {"inputSchema": schema, "annotations": said.get("hints", {})}
    admin_client.offer(server, name, description=said.get("description", ""), **declared)


@contextmanager
def world_of(acme: Organization, helper: Agent) -> Iterator[World]:
    """Set the office up, and end the writer behind it."""
    yield World(acme, helper)
    get_writer().close()
