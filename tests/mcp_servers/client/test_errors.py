"""Errors of servers: their status, and texts that are shown in the reader's language."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from django.utils.translation import override

from bonobot.core.http.egress import EgressDenied, check_url
from bonobot.core.i18n.localization import localize_text
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.errors import (
    build_bundle_error,
    build_crash_error,
    build_egress_error,
    build_folder_error,
    build_installing_error,
    build_rpc_error,
    build_sandbox_error,
)
from mcp_servers.client.sandbox import Sandbox
from tests.mcp_servers.client.endpoints import http

ENDPOINT = http("https://mcp.example.com/mcp")


@pytest.fixture
def refusal() -> EgressDenied:
    with pytest.raises(EgressDenied) as denied:
        check_url("https://10.0.0.1/mcp", allow_private=False)
    return denied.value


@pytest.mark.parametrize("code", [None, "x", True, 1.5])
def test_an_error_without_a_code_is_shown_without_one(code: Any) -> None:
    error = build_rpc_error(ENDPOINT, {"code": code, "message": "Too slow"})
    assert (str(error), error.rpc_code) == ("`a server` returned an error: Too slow", None)
    with override("de"):
        assert localize_text(error) == "`a server` hat einen Fehler zurückgegeben: Too slow"


def test_an_error_without_a_message_says_so_in_the_readers_language() -> None:
    error = build_rpc_error(ENDPOINT, {"code": -32603})
    assert str(error) == "`a server` returned an error: no message (-32603)"
    with override("de"):
        assert localize_text(error).endswith("keine Meldung (-32603)")


@pytest.mark.parametrize("stored", [False, True])
def test_the_last_output_of_a_crashed_server_is_shown_in_the_readers_language(stored: bool) -> None:
    error = build_crash_error(
        ENDPOINT, format_message("it exited with status {code}", code=3), "No module. Sorry"
    )
    text = "".join(str(error)) if stored else error.detail
    with override("de"):
        assert localize_text(text) == (
            "`a server` wurde beendet: der Prozess endete mit Status 3. "
            "Letzte Fehlerausgabe: „No module. Sorry“."
        )


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        (
            "Traceback (most recent call last):\n" + '  File "<string>", line 1\n' * 30 + "\n"
            "ModuleNotFoundError: No module named 'shop'\n\n  \n",
            "ModuleNotFoundError: No module named 'shop'",
        ),
        (
            "Error: no token\n    at main.js:1\n  code: 'NO_TOKEN'\n}\n\nNode.js v22.3.0\n",
            "Error: no token",
        ),
        (
            "Error: Cannot find module 'x'\nRequire stack:\n- /main.js\n    at main.js:1 {\n"
            "  code: 'MODULE_NOT_FOUND',\n  requireStack: [ '/main.js' ]\n}\n\nNode.js v22.3.0\n",
            "Error: Cannot find module 'x'",
        ),
        (
            "npm error 404 Not Found\nnpm error A complete log of this run can be found in: /x\n",
            "npm error 404 Not Found",
        ),
        ("Node.js v22.3.0", "Node.js v22.3.0"),
        ("ValueError: " + "x " * 300 + "the end", "… " + "x " * 116 + "the end"),
        ("y" * 300, "… " + "y" * 240),
        ("red \x1b[31mtext\u202e", make_visible("red \x1b[31mtext\u202e")),
    ],
)
def test_an_error_of_a_crashed_server_quotes_the_cause_at_the_end_of_its_output(
    output: str, cause: str
) -> None:
    text = str(build_crash_error(ENDPOINT, "it exited", output))
    assert text == f"`a server` ended: it exited. Last error output: “{cause}”."


def test_a_secret_at_the_cut_of_a_long_last_line_is_masked() -> None:
    endpoint = replace(ENDPOINT, env={"TOKEN": "geheim-" * 5})
    output = "x" * 10 + "geheim-" * 5 + " " + "y" * 220
    assert "geheim" not in str(build_crash_error(endpoint, "it exited", output))


@pytest.mark.parametrize(
    ("output", "is_missing"),
    [
        ("Error: Cannot find module '{path}'", True),
        ("python: can't open file '{path}': [Errno 2]", True),
        ("Warning: Cannot access directory {path}, skipping", True),
        ('File "{path}", line 1\nValueError', False),
        ("Error: Cannot find module 'express'", False),
    ],
)
def test_a_path_that_the_sandbox_hides_is_named_with_the_remedy(
    output: str, is_missing: bool, tmp_path: Path
) -> None:
    path = tmp_path / "index.js"
    for remedy in (f"`{path}` doesn't exist on this host.", f"Its sandbox hides `{path}`."):
        arguments = {"command": "node", "args": (str(path),)}
        sandbox = Sandbox(home="/home/x")
        endpoint = replace(ENDPOINT, transport="stdio", **arguments, sandbox=sandbox)
        reported = output.format(path=path)
        error = build_crash_error(endpoint, "it exited", reported)
        assert (remedy in error.remedy) == is_missing
        allowed = replace(endpoint, cwd=str(tmp_path))
        assert str(path) not in build_crash_error(allowed, "it exited", reported).remedy
        path.touch()


@pytest.mark.parametrize("stored", [False, True])
def test_a_refused_connection_is_shown_in_the_readers_language(
    stored: bool, refusal: EgressDenied
) -> None:
    error = build_egress_error(ENDPOINT, refusal, sent=False)
    assert str(error) == f"`a server` can't be used: {refusal.detail}"
    text = "".join(str(error)) if stored else error.detail
    with override("de"):
        reason = localize_text(refusal)
        assert localize_text(text) == f"`a server` kann nicht verwendet werden: {reason}"
    assert reason != str(refusal)


def test_the_progress_of_an_installation_is_shown_in_the_readers_language() -> None:
    error = build_installing_error(ENDPOINT, "added 12 packages")
    with override("de"):
        assert localize_text(error) == "`a server` wird installiert: added 12 packages."


def test_a_server_that_cant_be_used_from_here_is_unavailable(refusal: EgressDenied) -> None:
    errors = (
        build_bundle_error(ENDPOINT),
        build_folder_error(ENDPOINT, "it is a link"),
        build_sandbox_error(ENDPOINT, "it is missing", ""),
        build_egress_error(ENDPOINT, refusal, sent=False),
    )
    assert {(error.status, error.sent) for error in errors} == {(503, False)}
