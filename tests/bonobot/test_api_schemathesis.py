"""Schemathesis: requests made from the OpenAPI document, sent to a real server with real rows.

What is sent fits the document or breaks it on purpose; every answer must be one that the document
describes. `TEST_FUZZING=whole` (`make fuzz`) tries all that Schemathesis can think of.

An owner's run asks every operation. A member's run asks what a member may do: that all else is
refused as the document says is shown by the matrix of routes and roles. What is answered without
credentials, or with wrong ones, is asked of each operation in this process.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from tests import factories, rest
from tests.bonobot.test_api_matrix import OPERATIONS, filled, is_allowed, parts
from tests.inventory import everything
from tests.parts import ROOT
from tests.processes import Web

SETTINGS = ROOT / "tests" / "schemathesis.toml"
WHOLE = os.environ.get("TEST_FUZZING") == "whole"
EXAMPLES = "30" if WHOLE else "1"
# That each operation wants credentials takes two more requests, which another test here makes.
CHECKS = () if WHOLE else ("--exclude-checks", "ignored_auth")
PHASES = "examples,coverage,fuzzing" if WHOLE else "examples,fuzzing"


def settings(folder: Path, where: Organization) -> Path:
    """Write the settings with the ids of one of everything; what is removed is there twice."""
    known, spare = everything(where), everything(where, "-spare")
    path = folder / "schemathesis.toml"
    path.write_text(
        f"{SETTINGS.read_text()}\n{_pairs(known)}\n"
        f'[[operations]]\ninclude-method = "DELETE"\n[operations.parameters]\n{_pairs(spare)}'
    )
    return path


def _pairs(values: dict[str, str]) -> str:
    return "".join(f'"path.{name}" = "{value}"\n' for name, value in values.items())


def run(web: Web, settings: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run Schemathesis and return how it ended."""
    command = [Path(sys.executable).with_name("st"), "--config-file", settings]
    command += ["run", f"{web.url}/api/schema", "--phases", PHASES, *CHECKS, *options]
    return subprocess.run(
        command,
        cwd=settings.parent,
        env={**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


def allowed_operations(role: Role) -> list[str]:
    """Return the names that the document gives to what a role may do."""
    paths = rest.document()["paths"]
    names = []
    for route, method in OPERATIONS:
        if is_allowed(role, route, method):
            address = "/api/" + route.replace("<str:", "{").replace(">", "}")
            names.append(paths[address][method.lower()]["operationId"])
    return names


def test_responses_to_an_owner_match_the_document(module_web: Web, tmp_path: Path) -> None:
    where = factories.create_organization("owned")
    written = settings(tmp_path, where)
    _, token = create_token(factories.build_administrator(where), name="fuzz", role=Role.OWNER)
    ran = run(module_web, written, "-n", EXAMPLES, "-H", f"Authorization: Bearer {token}")
    assert ran.returncode == 0, ran.stdout


def test_responses_to_a_member_match_the_document(module_web: Web, tmp_path: Path) -> None:
    where = factories.create_organization("joined")
    written = settings(tmp_path, where)
    _, token = create_token(factories.build_administrator(where), name="fuzz", role=Role.MEMBER)
    names = allowed_operations(Role.MEMBER)
    assert 0 < len(names) < len(allowed_operations(Role.OWNER))
    chosen = [word for name in names for word in ("--include-operation-id", name)]
    ran = run(module_web, written, "-n", "1", "-H", f"Authorization: Bearer {token}", *chosen)
    assert ran.returncode == 0, ran.stdout


@pytest.mark.usefixtures("module_rows")
@pytest.mark.parametrize(
    ("token", "code"), [("", "not_authenticated"), ("bno_000000000000_wrong", "bad_token")]
)
def test_responses_without_authentication_match_the_document(token: str, code: str) -> None:
    """Each answer is checked against the document, whatever the body is."""
    client = rest.Rest(token)
    for route, method in OPERATIONS:
        address = filled(route, dict.fromkeys(parts(route), "unknown"))
        for body in (None,) if method in ("GET", "DELETE") else ({}, b"{", b'"text"'):
            response = client.send(method, address, body)
            assert (response.status, response.code) == (401, code), f"{method} {route}"
