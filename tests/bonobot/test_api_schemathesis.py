"""Schemathesis: requests generated from the OpenAPI document, sent to a real server.

Requests match the document or violate it on purpose; every response must be documented.
`TEST_FUZZING=whole` (`make fuzz`) runs all phases and checks.

An owner calls every operation. A member calls the allowed ones: test_api_matrix.py covers the
others. Requests without valid credentials are sent to each operation in this process.
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
from tests.bonobot.test_api_matrix import OPERATIONS, fill_path, is_allowed, list_path_parameters
from tests.inventory import create_everything
from tests.parts import ROOT
from tests.processes import Web

SETTINGS = ROOT / "tests" / "schemathesis.toml"
WHOLE = os.environ.get("TEST_FUZZING") == "whole"
EXAMPLES = "30" if WHOLE else "1"
# Another test of this module checks that each operation requires credentials.
CHECKS = () if WHOLE else ("--exclude-checks", "ignored_auth")
PHASES = "examples,coverage,fuzzing" if WHOLE else "examples,fuzzing"


def write_settings(folder: Path, organization: Organization) -> Path:
    """Write the settings with the IDs of one of everything; DELETE gets IDs of its own."""
    ids, spare_ids = create_everything(organization), create_everything(organization, "-spare")
    path = folder / "schemathesis.toml"
    path.write_text(
        f"{SETTINGS.read_text()}\n{_pairs(ids)}\n"
        f'[[operations]]\ninclude-method = "DELETE"\n[operations.parameters]\n{_pairs(spare_ids)}'
    )
    return path


def _pairs(values: dict[str, str]) -> str:
    return "".join(f'"path.{name}" = "{value}"\n' for name, value in values.items())


def run_schemathesis(web: Web, settings: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run Schemathesis and return the completed process."""
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


def list_allowed_operations(role: Role) -> list[str]:
    """Return the IDs of the operations that a role is allowed to call."""
    paths = rest.build_document()["paths"]
    names = []
    for route, method in OPERATIONS:
        if is_allowed(role, route, method):
            address = "/api/" + route.replace("<str:", "{").replace(">", "}")
            names.append(paths[address][method.lower()]["operationId"])
    return names


@pytest.mark.whole
def test_responses_to_an_owner_match_the_document(module_web: Web, tmp_path: Path) -> None:
    organization = factories.create_organization("owned")
    config = write_settings(tmp_path, organization)
    _, token = create_token(
        factories.build_administrator(organization), name="fuzz", role=Role.OWNER
    )
    result = run_schemathesis(
        module_web, config, "-n", EXAMPLES, "-H", f"Authorization: Bearer {token}"
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.skipif(not WHOLE, reason="`test_api_matrix.py` compares the responses to each role")
def test_responses_to_a_member_match_the_document(module_web: Web, tmp_path: Path) -> None:
    organization = factories.create_organization("joined")
    config = write_settings(tmp_path, organization)
    _, token = create_token(
        factories.build_administrator(organization), name="fuzz", role=Role.MEMBER
    )
    names = list_allowed_operations(Role.MEMBER)
    assert 0 < len(names) < len(list_allowed_operations(Role.OWNER))
    chosen = [word for name in names for word in ("--include-operation-id", name)]
    result = run_schemathesis(
        module_web, config, "-n", "1", "-H", f"Authorization: Bearer {token}", *chosen
    )
    assert result.returncode == 0, result.stdout


@pytest.mark.usefixtures("module_rows")
@pytest.mark.parametrize(
    ("token", "code"), [("", "not_authenticated"), ("bno_000000000000_wrong", "bad_token")]
)
def test_responses_without_authentication_match_the_document(token: str, code: str) -> None:
    """Each response is checked against the document, for any body."""
    client = rest.RestClient(token)
    for route, method in OPERATIONS:
        address = fill_path(route, dict.fromkeys(list_path_parameters(route), "unknown"))
        for body in (None,) if method in ("GET", "DELETE") else ({}, b"{", b'"text"'):
            response = client.send(method, address, body)
            assert (response.status, response.code) == (401, code), f"{method} {route}"
