"""An example organization with objects for every verb of the command line."""

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from agents.evaluation.recordings import create_recording
from agents.model_endpoints.services import ModelEndpointSpec, save_endpoint
from agents.models import Agent
from agents.notes import NoteSpec, save_note
from agents.sessions.quarantine import quarantine_session
from agents.sessions.services import request_cancel, start_session
from agents.skills import SkillSpec, delete_skill, save_skill
from agents.workflows.runs import run_workflow
from bonobot.accounts.invitations import create_invitation
from bonobot.accounts.models import Organization, User
from bonobot.accounts.principals import build_cli_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Launcher, Preset, Server
from mcp_servers.presets.sync_catalog import load_presets
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import admin_client, factories
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

OBJECT_SCHEMA = {"type": "object"}
RESPONSES: Mapping[str, dict[str, Any]] = {
    "server/discover": {
        "supportedVersions": [raw_http_server.MODERN],
        "capabilities": {"tools": {}, "resources": {}, "prompts": {}},
    },
    "tools/list": {
        "tools": [{"name": name, "inputSchema": OBJECT_SCHEMA} for name in ("echo", "add")]
    },
    "tools/call": {"content": [{"type": "text", "text": "ok"}]},
    "resources/list": {"resources": [{"uri": "docs://intro", "name": "intro"}]},
    "resources/templates/list": {"resourceTemplates": []},
    "resources/read": {"contents": [{"uri": "docs://intro", "text": "Hello"}]},
    "prompts/list": {"prompts": [{"name": "review"}]},
    "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": "Go"}}]},
}


@dataclass(frozen=True)
class Call:
    """The arguments of a verb for the example organization.

    In an argument, `#` is replaced by the number of the run, for verbs that can change an object
    only once, and `@name` by the value of that name. `unknown_args` refer to an object that
    doesn't exist. With `reads`, two runs print the same output.
    """

    args: Sequence[str] = ()
    unknown_args: Sequence[str] = ()
    code: str = "not_found"
    reads: bool = False

    def build_arguments(self, run: int, values: Mapping[str, str]) -> list[str]:
        """Return the arguments of one run."""
        numbered = [argument.replace("#", str(run)) for argument in self.args]
        return [values.get(argument, argument) for argument in numbered]


NOBODY = ("--org", "nobody")  # an unknown organization, for verbs without another object

CALLS: Mapping[str, Call] = {
    "agents add": Call(("Second #",), ("Second", "--model", "nothing")),
    "agents set": Call(("helper",), ("nobody",), reads=True),
    "agents chat": Call(("helper",), ("nobody",)),
    "agents disable": Call(("helper",), ("nobody",)),
    "agents enable": Call(("helper",), ("nobody",)),
    "agents explain": Call(
        ("helper", "mcp_docs_echo"), ("helper", "nothing"), "unknown_tool", reads=True
    ),
    "agents export-session": Call(("@session0",), ("nothing",), reads=True),
    "agents import-session": Call(("helper", "session.json"), ("nobody", "session.json")),
    "agents list": Call((), NOBODY, reads=True),
    "agents callable-agents": Call(("helper",), ("nobody",), reads=True),
    "agents policy": Call(("helper",), ("nobody",), reads=True),
    "agents record": Call(("@session#",), ("nothing",)),
    "agents recordings": Call((), ("nobody",), reads=True),
    "agents remove-recording": Call(("@recording#",), ("nothing",)),
    "agents replay": Call(("@replayed-recording", "--no-wait"), ("nothing",)),
    "agents retry": Call(("@session#",), ("nothing",)),
    "agents run": Call(("helper", "Hello"), ("nobody", "Hello")),
    "elicitations answer": Call(("@elicitation#", "decline"), ("nothing", "decline")),
    "elicitations list": Call((), NOBODY, reads=True),
    "elicitations show": Call(("@pending-elicitation",), ("nothing",), reads=True),
    "agents flow-labels": Call(("helper",), ("nobody",), reads=True),
    "agents clear-flow-labels": Call(("helper",), ("nobody",)),
    "agents store-labels": Call(("helper",), ("nobody",), reads=True),
    "agents clear-store-labels": Call(("helper",), ("nobody",)),
    "agents session-approvals": Call(("@session0",), ("nothing",), reads=True),
    "agents revoke-session-approval": Call(("@session-approval#",), ("nothing",)),
    "agents remove": Call(("gone-#",), ("nobody",)),
    "agents cancel": Call(("@session#",), ("nothing",)),
    "agents release": Call(("@quarantined#",), ("nothing",)),
    "agents sessions": Call((), ("nobody",), reads=True),
    "agents tools": Call(("helper",), ("nobody",), reads=True),
    "agents workspace": Call(("helper",), ("nobody",), reads=True),
    "access-requests approve": Call(("@approve-access#",), ("nothing",)),
    "access-requests cancel": Call(("@cancel-access#",), ("nothing",)),
    "access-requests create": Call(
        ("agent", "Wish #", "--reason", "To try it."),
        ("tool", "x", "--agent", "nobody", "--reason", "x"),
    ),
    "access-requests deny": Call(
        ("@deny-access#", "--message", "No."), ("nothing", "--message", "No.")
    ),
    "access-requests list": Call((), NOBODY, reads=True),
    "access-requests show": Call(("@pending-access",), ("nothing",), reads=True),
    "approvals approve": Call(("@approve#",), ("nothing",)),
    "approvals deny": Call(("@deny#", "--message", "No."), ("nothing",)),
    "approvals list": Call((), NOBODY, reads=True),
    "approvals show": Call(("@pending-approval",), ("nothing",), reads=True),
    "audit export": Call(("--output", "audit-#"), ("--output", "nothing/x"), "unusable_file"),
    "audit checkpoint": Call((), NOBODY, reads=True),
    "audit list": Call(("--limit", "5"), NOBODY, reads=True),
    "audit show": Call(("1",), ("nothing",), reads=True),
    "audit prune": Call(("--before", "365d", "--yes"), ("--before", "365d", *NOBODY)),
    "audit simulate": Call(
        ("--agent", "helper", "--mode", "none"), ("--agent", "nobody", "--mode", "none")
    ),
    "audit verify": Call((), ("--file", "nothing"), "unusable_file", reads=True),
    "first-run hide": Call((), NOBODY),
    "first-run show": Call((), NOBODY, reads=True),
    "first-run skip": Call(("connect",), ("nothing",), "invalid"),
    "first-run unskip": Call(("connect",), ("nothing",), "invalid"),
    "first-run unhide": Call((), NOBODY),
    "budgets list": Call((), ("--agent", "nobody"), reads=True),
    "budgets set": Call(
        ("--agent", "helper", "calls/day=9@50", "session:dollars/total=1.50"),
        ("--agent", "nobody", "calls/day=9"),
    ),
    "usage export": Call(("--output", "usage-#"), ("--output", "nothing/x"), "unusable_file"),
    "usage rebuild": Call((), NOBODY),
    "usage show": Call(("--by", "tool"), NOBODY, reads=True),
    "mcp add": Call(("new-#", "--url", "@url", "--allow-private"), ("new", "--preset", "nothing")),
    "mcp add-operation": Call(
        ("shop-#", "look", "--url", "@url", "--description", "Looks.", "--allow-private"),
        ("docs", "look", "--url", "/look", "--description", "Looks."),
        "not_declared",
    ),
    "mcp apply": Call(("bonobot.yaml", "--dry-run"), ("nothing",), "unreadable_file", reads=True),
    "mcp reject": Call(
        ("asking", "look-#", "--reason", "No."), ("asking", "nothing", "--reason", "No.")
    ),
    "mcp approve": Call(("docs",), ("nothing",)),
    "mcp connect": Call(("docs", "--agent", "helper"), ("docs", "--agent", "nobody")),
    "mcp disable": Call(("spare-#",), ("nothing",)),
    "mcp disable-preset": Call(("time",), ("nothing",)),
    "mcp disconnect": Call(("docs", "--agent", "helper"), ("nothing",)),
    "mcp enable": Call(("spare-#",), ("nothing",)),
    "mcp enable-preset": Call(("time",), ("nothing",)),
    "mcp export": Call((), ("--agent", "nobody"), reads=True),
    "mcp history": Call(("docs",), ("nothing",), reads=True),
    "mcp import": Call(("clients-#.json", "--allow-private"), ("nothing",), "unreadable_file"),
    "mcp label": Call(("docs",), ("nothing",), reads=True),
    "mcp store-labels": Call(("docs",), ("nothing",), reads=True),
    "mcp clear-store-labels": Call(("docs",), ("nothing",)),
    "mcp list": Call((), NOBODY, reads=True),
    "mcp login": Call(("linear", "--no-wait"), ("docs",), "no_login", reads=True),
    "mcp logout": Call(("linear",), ("docs",), "no_login"),
    "mcp launchers": Call((), NOBODY, reads=True),
    "mcp add-launcher": Call(("launcher-#",), ("bash",), "invalid"),
    "mcp remove-launcher": Call(("spare-#",), ("nothing",)),
    "mcp remove-preset": Call(("spare-#",), ("nothing",)),
    "mcp logs": Call(("docs",), ("nothing",), reads=True),
    "mcp operations": Call(("shop",), ("nothing",), reads=True),
    "mcp presets": Call((), ("nothing",), reads=True),
    "mcp price": Call(("docs", "--call-price", "0.005"), ("nothing",)),
    "mcp prompt": Call(("docs", "review"), ("docs", "nothing"), "unknown_prompt"),
    "mcp prompts": Call(("docs",), ("docs", "--agent", "nobody"), reads=True),
    "mcp read": Call(("docs", "docs://intro"), ("docs", "docs://x"), "unknown_resource"),
    "mcp install": Call(("docs",), ("nothing",)),
    "mcp refresh": Call(("docs",), ("nothing",)),
    "mcp remove": Call(("spare-#",), ("nothing",)),
    "mcp remove-operation": Call(("shop", "spare-#"), ("shop", "nothing"), "unknown_operation"),
    "mcp resources": Call(("docs",), ("nothing",), reads=True),
    "mcp save-preset": Call(("docs", "Ours #"), ("nothing", "Ours")),
    "mcp serve": Call(
        ("--check", "--agent", "helper"),
        ("--check", "--agent", "nobody"),
        "unknown_endpoint",
        reads=True,
    ),
    "mcp show": Call(("docs",), ("nothing",), reads=True),
    "mcp status": Call((), ("nothing",), reads=True),
    "mcp test": Call(("docs",), ("nothing",)),
    "mcp test-tool": Call(("docs", "echo"), ("docs", "nothing"), "unknown_tool"),
    "mcp tools": Call(("docs",), ("docs", "--enable", "nothing"), "unknown_tool", reads=True),
    "models test": Call(("offline",), ("nothing",)),
    "models add": Call(
        ("new-#", "--kind", "anthropic", "--model", "claude"),
        ("new", "--kind", "offline", "--fallback", "nothing"),
    ),
    "models list": Call((), NOBODY, reads=True),
    "models remove": Call(("spare-#",), ("nothing",)),
    "models set": Call(("offline", "--timeout", "60"), ("nothing",)),
    "notes list": Call(("helper",), ("nobody",), reads=True),
    "notes remove": Call(("helper", "spare-#"), ("helper", "nothing")),
    "notes write": Call(("helper", "new-#", "Text."), ("nobody", "new", "Text.")),
    "notifications add": Call(
        ("new-#", "--url", "https://hooks.example.com/#"),
        ("new", "--url", "https://hooks.example.com/x", *NOBODY),
    ),
    "notifications remove": Call(("gone-#",), ("nobody",)),
    "notifications set": Call(("Pager", "--minimum", "warning"), ("nobody",)),
    "notifications channels": Call((), NOBODY, reads=True),
    "notifications list": Call((), NOBODY, reads=True),
    "notifications retry": Call(("@notification",), ("nothing",)),
    "notifications test": Call(("Pager",), ("nobody",)),
    "keys drop": Call(("--now",), NOBODY, "whole_installation"),
    "keys rotate": Call(("--yes", "--wait", "0"), NOBODY, "whole_installation"),
    "keys status": Call((), NOBODY, "whole_installation", reads=True),
    "org add": Call(("new-#",), ("No Slug",), "invalid"),
    "org deletions": Call(("--org", "acme"), NOBODY, reads=True),
    "org restore": Call(("@deletion#", "--org", "acme"), (str(uuid4()), "--org", "acme")),
    "org delete": Call(("--dry-run",), (*NOBODY, "--dry-run"), reads=True),
    "org export": Call(("left-#",), ("left", *NOBODY)),
    "org halt": Call(("--yes",), NOBODY),
    "org resume": Call((), NOBODY),
    "org set": Call(("--approval-hours", "8"), (*NOBODY, "--approval-hours", "8")),
    "org show": Call((), NOBODY, reads=True),
    "skills add": Call(
        ("new-#", "--text", "Do it."), ("new", "--text", "Do ${it}."), "undeclared_argument"
    ),
    "skills list": Call((), ("--agent", "nobody"), reads=True),
    "skills remove": Call(("spare-#",), ("nothing",)),
    "skills run": Call(("tell", "--agent", "helper"), ("nothing", "--agent", "helper")),
    "skills set": Call(("tell", "--description", "#"), ("nothing", "--text", "x")),
    "skills show": Call(("tell",), ("nothing",), reads=True),
    "workflows add": Call(
        ("new-#", "--file", "flow.yaml"), ("new", "--file", "nothing"), "unusable_file"
    ),
    "workflows add-trigger": Call(
        ("tell", "hourly-#", "--every", "3600"), ("tell", "x", "--cron", "x"), "invalid"
    ),
    "workflows approve": Call(("tell",), ("nothing",)),
    "workflows cancel": Call(("@run",), ("nothing",)),
    "workflows list": Call((), NOBODY, reads=True),
    "workflows remove": Call(("spare-#",), ("nothing",)),
    "workflows remove-trigger": Call(("tell", "spare-#"), ("tell", "nothing")),
    "workflows replace-secret": Call(("tell", "alerts"), ("tell", "nothing")),
    "workflows run": Call(("tell", "--no-wait"), ("nothing",)),
    "workflows runs": Call((), ("nothing",)),
    "workflows set": Call(("tell", "--enabled"), ("nothing", "--no-enabled")),
    "workflows set-trigger": Call(
        ("tell", "alerts", "--enabled"), ("tell", "nothing", "--no-enabled")
    ),
    "workflows show": Call(("tell",), ("nothing",), reads=True),
    "workflows steps": Call(("@run",), ("nothing",)),
    "workflows triggers": Call(("tell",), ("nothing",)),
    "members add": Call(("joins-#", "member"), ("nobody", "member")),
    "members invite": Call(
        ("new-#@example.com", "--role", "member", "--agent", "helper"),
        ("x@example.com", "--role", "member", "--agent", "nobody"),
    ),
    "members list": Call((), NOBODY, reads=True),
    "members remove": Call(("leaves-#",), ("nobody",)),
    "members reset-password": Call(("stays",), ("nobody",)),
    "members reset-second-factor": Call(("stays",), ("nobody",)),
    "members revoke": Call(("gone-#@example.com",), ("nobody@example.com",)),
    "members send-again": Call(("asked@example.com",), ("nobody@example.com",)),
    "members set": Call(("stays", "--language", "de"), ("nobody", "--language", "de")),
    "members set-role": Call(("stays", "auditor"), ("nobody", "auditor")),
    "members sign-out": Call(("stays",), ("nobody",)),
    "tokens create": Call(
        ("ci-#", "--role", "operator"), ("ci", "--role", "member", "--agent", "nobody")
    ),
    "tokens flow-labels": Call(("@token",), ("nothing",), reads=True),
    "tokens clear-flow-labels": Call(("@token",), ("nothing",)),
    "tokens list": Call((), NOBODY, reads=True),
    "tokens revoke": Call(("@token",), ("nothing",)),
    "tokens set": Call(("@token", "--scope", "api"), ("nothing", "--scope", "api")),
    "issuers add": Call(
        ("login-#", "--url", "https://login-#.example.com"),
        ("x", "--url", "https://x.example.com", "--agent", "nobody"),
    ),
    "issuers check": Call(("Login",), ("nothing",)),
    "issuers list": Call((), NOBODY, reads=True),
    "issuers remove": Call(("spare-#",), ("nothing",)),
    "issuers set": Call(("Login", "--scope", "mcp:tools"), ("nothing", "--role", "member")),
    "sso add": Call(
        ("id-#", "--url", "https://id-#.example.com", "--client-id", "bonobot"),
        ("x", "--url", "https://x.example.com", "--client-id", "x", *NOBODY),
    ),
    "sso check": Call(("ID",), ("nothing",)),
    "sso list": Call((), NOBODY, reads=True),
    "sso remove": Call(("spare-#",), ("nothing",)),
    "sso set": Call(("ID", "--domain", "example.com"), ("nothing", "--role", "member")),
    "mcp snippet": Call((), ("--agent", "nobody"), reads=True),
    "tools list": Call((), NOBODY, reads=True),
    "tools add-mcp": Call(
        ("added-#", "--url", "@url", "--server-type", "http", "--allow-private"),
        ("added", "--command", "bash -c true"),
        "launcher_not_allowed",
    ),
    "tools list-mcp": Call((), NOBODY, reads=True),
    "tools remove-mcp": Call(("idle-#",), ("nothing",)),
    "tools test-mcp": Call(("docs",), ("nothing",)),
    "tools toggle-mcp": Call(("docs", "--enable"), ("nothing",)),
}


@contextmanager
def run_server() -> Iterator[RawHttp]:
    """Run a server with two tools, a resource, and a prompt on the runtime's loop."""

    def respond(request: RecordedRequest) -> bytes:
        if request.method in RESPONSES:
            return raw_http_server.result(request, RESPONSES[request.method])
        if ".well-known" in request.path:
            metadata = {"issuer": http.url, "jwks_uri": f"{http.url}/keys"}
            metadata |= {
                f"{name}_endpoint": f"{http.url}/{name}" for name in ("authorization", "token")
            }
            return raw_http_server.response(200, json.dumps(metadata).encode())
        if request.path.endswith("/keys"):
            return raw_http_server.response(200, b'{"keys": []}')
        return raw_http_server.response(202, kind="")

    http = RawHttp(respond)
    listening = http.listening()

    async def start() -> None:
        await listening.__aenter__()

    async def stop() -> None:
        await listening.__aexit__(None, None, None)

    get_runtime().call(start)
    try:
        yield http
    finally:
        for server in Server.objects.all():
            get_runtime().call(get_connection_pool().forget_server, server.pk)
        get_runtime().call(stop)


def create_example_objects(organization: Organization, url: str, folder: Path) -> dict[str, str]:
    """Create the objects and files of the example; return the values of the `@` names."""
    administrator = factories.build_administrator(organization)
    load_presets()
    factories.approve_server(
        organization,
        factories.create_http_server(organization, url, "docs"),
        factories.create_agent(organization),
    )
    for number in range(4):
        admin_client.create_web_server(organization, f"spare-{number}")
        User.objects.create_user(f"joins-{number}")
        factories.create_member(organization, Role.MEMBER, f"leaves-{number}")
        create_invitation(administrator, f"gone-{number}@example.com", Role.MEMBER)
        save_endpoint(administrator, ModelEndpointSpec(name=f"spare-{number}", kind="offline"))
        factories.create_notification(organization, f"gone-{number}")
    factories.create_member(organization, Role.MEMBER, "stays")
    factories.create_member(organization, Role.OWNER, "head")
    create_invitation(administrator, "asked@example.com", Role.MEMBER)
    auth_config = {"type": "oauth2", "grant": "authorization_code"}
    config = {"url": "https://mcp.example.com/mcp"}
    create_server(
        administrator,
        ServerSpec(
            name="linear",
            transport_type="http",
            endpoint_config=config,
            auth_config=auth_config,
        ),
    )
    operations = [
        {"name": name, "description": "Looks.", "path": f"/{name}"}
        for name in ("look", *(f"spare-{number}" for number in range(4)))
    ]
    create_server(
        administrator,
        ServerSpec(
            name="shop",
            transport_type="openapi",
            endpoint_config={"url": url, "declared": operations},
            allow_private=True,
        ),
    )
    factories.create_issuer(organization, url, allow_private=True)
    factories.create_provider(organization, url, "ID", allow_private=True)
    for number in range(4):
        factories.create_issuer(organization, f"https://{number}.example.com", f"spare-{number}")
        factories.create_provider(organization, f"https://{number}.example.com", f"spare-{number}")
    message = {"seq": 1, "kind": "message", "state": "done", "text": "Hello"}
    (folder / "session.json").write_text(json.dumps({"steps": [message]}))
    (folder / "bonobot.yaml").write_text("servers:\n  more: {url: https://more.example.com/mcp}\n")
    for number in range(4):
        text = json.dumps({f"client-{number}": {"url": url}})
        (folder / f"clients-{number}.json").write_text(text)
    agent = Agent.objects.get(organization=organization)
    save_note(administrator, agent, NoteSpec("Release day", "Friday."))
    for number in range(4):
        factories.create_agent(organization, f"gone-{number}")
        save_note(administrator, agent, NoteSpec(f"spare-{number}", "Something."))
        save_skill(administrator, SkillSpec(name=f"spare-{number}", text="Something."))
        factories.create_workflow(agent, f"spare-{number}")
    run = run_workflow(administrator, factories.create_workflow(agent), {})
    for name in ("alerts", *(f"spare-{number}" for number in range(4))):
        factories.create_trigger(run.workflow, name)
    (folder / "flow.yaml").write_text(run.workflow.source)
    save_skill(administrator, SkillSpec(name="tell", text="Hello", agents=[agent.slug]))
    values = {
        f"@{action}{n}": factories.create_approval(agent).pk
        for action in ("approve", "deny")
        for n in range(4)
    }
    values |= {
        f"@{action}-access{n}": factories.create_access_request(organization).pk
        for action in ("approve", "deny")
        for n in range(4)
    }
    requester = build_cli_principal(organization)
    own = {"requested_by_kind": requester.kind, "requested_by_id": requester.id}
    values |= {
        f"@cancel-access{n}": factories.create_access_request(organization, **own).pk
        for n in range(4)
    }
    sessions = {f"@session{n}": factories.create_answered_session(agent).pk for n in range(4)}
    for number in range(4):
        quarantined = factories.create_answered_session(agent)
        quarantine_session(quarantined)
        sessions[f"@quarantined{number}"] = quarantined.pk
    recordings = {
        f"@recording{n}": create_recording(
            administrator, factories.create_answered_session(agent)
        ).pk
        for n in range(4)
    }
    recordings["@replayed-recording"] = create_recording(
        administrator, factories.create_answered_session(agent)
    ).pk
    deletions = [
        delete_skill(administrator, save_skill(administrator, SkillSpec(name=f"old-{n}", text="x")))
        for n in range(4)
    ]
    values |= {f"@deletion{n}": row.pk for n, row in enumerate(deletions) if row is not None}
    server = admin_client.create_web_server(organization, "asking")
    session = start_session(administrator, agent, "Provision it")
    request_cancel(administrator, session)  # otherwise a verb that runs sessions would run it
    values |= {
        f"@elicitation{n}": factories.create_elicitation(session, server).pk for n in range(4)
    }
    for number in range(4):
        admin_client.declare_tool(server, f"look-{number}")
        Launcher.objects.create(command=f"spare-{number}")
        factories.create_http_server(organization, "http://127.0.0.1:9/mcp", f"idle-{number}")
        Preset.objects.create(
            organization=organization, slug=f"spare-{number}", name="Spare", transport_type="http"
        )
        values[f"@session-approval{number}"] = session.grants.create(
            organization=organization,
            agent=agent,
            own_name=f"one-{number}",
            label="one",
            granted_by="x",
        ).pk
    return {name: str(pk) for name, pk in (values | sessions | recordings).items()} | {
        "@pending-elicitation": str(factories.create_elicitation(session, server).pk),
        "@pending-access": str(factories.create_access_request(organization).pk),
        "@pending-approval": str(factories.create_approval(agent).pk),
        "@url": url,
        "@secret": create_token(administrator, name="serves", role=Role.OPERATOR)[1],
        "@run": str(run.pk),
        "@notification": str(factories.create_notification(organization).pk),
        "@token": create_token(administrator, name="old", role=Role.AUDITOR)[0].key,
    }
