"""Skills over MCP (SEP-2640): of servers through the gateway in both eras, and our own."""

import base64
import hashlib
from dataclasses import replace
from typing import Any

import pytest

from agents.models import Agent, Skill
from agents.services import attach_server
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.client.mcp_extensions import (
    SKILLS_EXTENSION,
    is_skill_content,
    parse_frontmatter,
    validate_skill,
)
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.models import Definition, Server
from tests import factories
from tests.agents.gateway.conftest import GatewayClient
from tests.agents.gateway.upstream_server import Json, Upstream, attach_upstream
from tests.servers.raw_http_server import HandshakeHttp

AGENT, SERVER = "/mcp/agents/helper", "/mcp/servers/docs"
URI, FORM = "skill://acme/pdf-work/SKILL.md", "skill://acme/pdf-work/references/FORMS.md"
EXPOSED = "skill://docs/acme/pdf-work/SKILL.md"
FRONTMATTER = {"name": "pdf-work", "description": "Fill and split PDF documents"}
TEXT = f"---\nname: pdf-work\ndescription: {FRONTMATTER['description']}\n---\n\nUse the form.\n"
FILES = {URI: TEXT, FORM: "A form."}


def describe(files: dict[str, str]) -> list[Json]:
    return [
        {
            "uri": uri,
            "digest": f"sha256:{hashlib.sha256(text.encode()).hexdigest()}",
            "size": len(text.encode()),
        }
        for uri, text in files.items()
    ]


ENTRY: Json = {"uri": URI, "frontmatter": FRONTMATTER, "resources": describe(FILES)}


class SkillServer(Upstream):
    """A server with one skill, whose files tests can change."""

    def __init__(self, *, handshake: bool) -> None:
        super().__init__("docs", handshake=handshake)
        self.entry = ENTRY
        self.files = dict(FILES)
        if isinstance(self.http.respond, HandshakeHttp):
            self.http.respond.capabilities = self._capabilities()

    def _capabilities(self) -> Json:
        extensions = {SKILLS_EXTENSION: {"directoryRead": True}}
        return {"resources": {}, "extensions": extensions}

    def _respond(self, request: Any) -> bytes:
        uri = request.message.get("params", {}).get("uri")
        overrides: Json = {
            "server/discover": {
                "resultType": "complete",
                "supportedVersions": ["2026-07-28"],
                "capabilities": self._capabilities(),
            },
            "resources/list": {"resultType": "complete", "resources": []},
            "skills/list": {"resultType": "complete", "skills": [self.entry]},
        }
        if request.method in overrides:
            return self._override(request, overrides[request.method])
        if request.method == "resources/read":
            contents = [{"uri": uri, "text": self.files[uri]}]
            return self._override(request, {"resultType": "complete", "contents": contents})
        return super()._respond(request)


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("handshake", [False, True])
def test_an_approved_skill_is_relayed_in_both_eras(
    handshake: bool, acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    with SkillServer(handshake=handshake).listening() as upstream:
        attach_upstream(upstream, acme, helper)
        session = gateway_client.handshake(AGENT)

        def modern(method: str, **params: Any) -> Json:
            return gateway_client.modern(AGENT, method, params).result

        def ask(method: str, **params: Any) -> Json:
            return session.ask(method, params).result

        for send in (modern, ask):
            (skill,) = send("skills/list")["skills"]
            assert (skill["uri"], skill["frontmatter"]) == (EXPOSED, FRONTMATTER)
            assert [file["uri"] for file in skill["resources"]] == [
                EXPOSED,
                "skill://docs/acme/pdf-work/references/FORMS.md",
            ]
            assert send("skills/get", uri=EXPOSED)["skill"] == skill
            for file in skill["resources"]:
                (content,) = send("resources/read", uri=file["uri"])["contents"]
                assert content["uri"] == file["uri"]
                assert describe({file["uri"]: content["text"]}) == [file]
        assert modern("server/discover")["capabilities"]["extensions"][SKILLS_EXTENSION] == {}
        assert gateway_client.modern(SERVER, "skills/list").result["skills"] == [ENTRY]
        unknown = gateway_client.modern(AGENT, "skills/get", {"uri": "skill://docs/x/SKILL.md"})
        assert unknown.error["code"] == -32602


@pytest.mark.django_db(transaction=True)
def test_a_changed_file_is_refused_until_the_new_digests_are_approved(
    acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    with SkillServer(handshake=False).listening() as upstream:
        server = attach_upstream(upstream, acme, helper)
        Server.objects.update(approval=Server.Approval.MANUAL)
        administrator = factories.build_administrator(acme)
        upstream.files[FORM] = "A fork."
        form = "skill://docs/acme/pdf-work/references/FORMS.md"
        refused = gateway_client.modern(AGENT, "resources/read", {"uri": form})
        assert refused.error["data"]["code"] == "skill_changed"
        assert gateway_client.modern(AGENT, "resources/read", {"uri": EXPOSED}).result
        upstream.entry = {**ENTRY, "resources": describe(upstream.files)}
        get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
        assert gateway_client.modern(AGENT, "skills/list").result["skills"] == []
        assert gateway_client.modern(AGENT, "resources/read", {"uri": EXPOSED}).error
        definition = Definition.objects.get(kind="skill")
        assert (definition.state, definition.title) == ("changed", "pdf-work")
        assert definition.description == FRONTMATTER["description"]
        approve_definitions(administrator, server, {definition.pk: definition.digest})
        assert gateway_client.modern(AGENT, "resources/read", {"uri": form}).result


@pytest.mark.django_db(transaction=True)
def test_a_skill_that_isnt_selected_is_unknown(
    acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    with SkillServer(handshake=False).listening() as upstream:
        server = attach_upstream(upstream, acme, helper)
        administrator = factories.build_administrator(acme)
        attach_server(administrator, helper, server, allowed_resources=[])
        assert gateway_client.modern(AGENT, "skills/list").result["skills"] == []
        refused = gateway_client.modern(AGENT, "resources/read", {"uri": EXPOSED})
        assert refused.error["code"] == -32602
        attach_server(administrator, helper, server, allowed_resources=["skill://acme/*"])
        assert gateway_client.modern(AGENT, "resources/read", {"uri": EXPOSED}).result


@pytest.mark.django_db(transaction=True)
def test_own_skills_are_served_to_clients(
    acme: Organization, helper: Agent, gateway_client: GatewayClient
) -> None:
    administrator = factories.build_administrator(acme)
    argument = {"name": "version", "description": "Which release: 1.4"}
    for name in ("release-notes", "Not_A_Skill_Name"):
        spec = SkillSpec(name=name, description='Writes "notes": all', text="For ${version}.")
        save_skill(administrator, replace(spec, arguments=[argument], agents=[helper.slug]))
    for path in (AGENT, "/mcp"):
        (entry,) = gateway_client.modern(path, "skills/list").result["skills"]
        uri = entry["uri"]
        assert uri == "skill://release-notes/SKILL.md"
        assert list(validate_skill(entry)) == []
        assert gateway_client.modern(path, "skills/get", {"uri": uri}).result["skill"] == entry
        result = gateway_client.modern(path, "resources/read", {"uri": uri}).result
        assert is_skill_content(entry, uri, result)
        assert "For ${version}." in result["contents"][0]["text"]
        unknown = {"uri": "skill://Not_A_Skill_Name/SKILL.md"}
        assert gateway_client.modern(path, "resources/read", unknown).error["code"] == -32602
    save_skill(
        administrator,
        SkillSpec(name="release-notes", enabled=False),
        Skill.objects.get(name="release-notes"),
    )
    for path in (AGENT, "/mcp"):
        assert gateway_client.modern(path, "resources/read", {"uri": uri}).error["code"] == -32602
        assert gateway_client.modern(path, "skills/list").result["skills"] == []


INVALID: dict[str, Json] = {
    "no frontmatter": {"frontmatter": None},
    "no description": {"frontmatter": {"name": "pdf-work"}},
    "another name": {"frontmatter": {**FRONTMATTER, "name": "work"}},
    "no file": {"uri": "skill://pdf-work"},
    "dynamic": {"resources": "dynamic"},
    "no digests": {"resources": [{"uri": URI, "size": 1}]},
    "an odd size": {"resources": [{**ENTRY["resources"][0], "size": True}]},
    "without its file": {"resources": ENTRY["resources"][1:]},
    "a file twice": {"resources": [*ENTRY["resources"], ENTRY["resources"][1]]},
    "a file elsewhere": {"resources": [*ENTRY["resources"], *describe({"skill://acme/x": ""})]},
    "a file above": {
        "resources": [*ENTRY["resources"], *describe({"skill://acme/pdf-work/../x": ""})]
    },
    "too many files": {
        "resources": [
            *ENTRY["resources"],
            *describe({f"skill://acme/pdf-work/{n}": "" for n in range(511)}),
        ]
    },
    "too large": {"resources": [{**ENTRY["resources"][0], "size": 16 * 2**20 + 1}]},
}


def test_a_valid_skill_has_no_fault() -> None:
    assert list(validate_skill(ENTRY)) == []


@pytest.mark.parametrize("name", INVALID)
def test_an_invalid_skill_cant_be_used(name: str) -> None:
    assert list(validate_skill({**ENTRY, **INVALID[name]}))


def read(text: str, uri: str = URI) -> Json:
    return {"contents": [{"uri": uri, "text": text}]}


def test_content_is_compared_with_digest_size_and_frontmatter() -> None:
    assert is_skill_content(ENTRY, URI, read(TEXT))
    blob = base64.b64encode(TEXT.encode()).decode()
    assert is_skill_content(ENTRY, FORM, read("A form.", FORM))
    assert not is_skill_content(ENTRY, FORM, read("A fork.", FORM))
    assert not is_skill_content(ENTRY, FORM, read("A form.", URI))
    assert not is_skill_content(ENTRY, FORM, {"contents": [{"uri": FORM, "blob": "%"}]})
    assert not is_skill_content(ENTRY, URI, {"contents": [{"uri": URI, "blob": blob}]})
    assert not is_skill_content(ENTRY, URI, {"contents": read(TEXT)["contents"] * 2})
    assert not is_skill_content(ENTRY, f"{URI}.other", read(TEXT, f"{URI}.other"))
    other_entry = {**ENTRY, "frontmatter": {**FRONTMATTER, "license": "MIT"}}
    assert not is_skill_content(other_entry, URI, read(TEXT))


@pytest.mark.parametrize("text", ["", "no frontmatter", "---\na: [\n---\n", "---\nname: x\n"])
def test_an_unreadable_frontmatter_is_none(text: str) -> None:
    assert parse_frontmatter(text) is None
