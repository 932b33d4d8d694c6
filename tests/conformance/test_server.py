"""The official conformance suite judges the gateway, in front of a server of our own."""

import os
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest

from tests.approved_server import publish
from tests.conformance.bearer_proxy import door
from tests.conformance.scenarios import BEYOND, HANDSHAKE, MODERN, TASKS, TOLERATED
from tests.conformance.suite import Verdict, judged, required
from tests.conformance_server import everything
from tests.parts import ROOT
from tests.processes import Web

pytestmark = [pytest.mark.npm, pytest.mark.django_db(transaction=True)]

WHOLE = bool(os.environ.get("TEST_CONFORMANCE"))
whole = pytest.mark.skipif(not WHOLE, reason="`make conformance` plays all scenarios")
PAGE = ROOT / "docs" / "conformance.md"
SHOWN = 2_000  # characters of what the suite printed: its end sums up
COUNTS = {MODERN: 37, HANDSHAKE: 30}


@pytest.fixture
def upstream(tmp_path: Path) -> Iterator[str]:
    with everything(tmp_path) as url:
        yield url


@pytest.fixture
def gateway(upstream: str, start_web: Callable[..., Web], free_port: int) -> Iterator[str]:
    """Put Bonobot in front of the server, and a door that adds the token in front of Bonobot."""
    published = publish(upstream)
    url = f"http://127.0.0.1:{free_port}"
    web = start_web(BONOBOT_URL=url)
    with door(free_port, web.port, published.token):
        yield url + published.paths[0]


def conforms(verdict: Verdict, wanted: Iterable[str]) -> None:
    """Assert that scenarios passed, and that nothing of them was even warned of."""
    faults = [
        line for line in verdict.faults() if line.startswith(tuple(f"{one}:" for one in wanted))
    ]
    said = verdict.said[-SHOWN:]
    assert [line for line in faults if not tolerated(line)] == []
    assert [name for name in wanted if name not in verdict.passed()] == [], said
    assert verdict.status == 0, said


def tolerated(line: str) -> bool:
    """Tell whether a fault is one that a revision only recommends against."""
    return any(f": {one}: WARNING" in line for one in TOLERATED)


@pytest.fixture
def scenarios(revision: str, tmp_path: Path) -> list[str]:
    """Return what a revision requires of servers."""
    found = required("Server", revision, tmp_path)
    assert len(found) == COUNTS[revision]
    return found


@whole
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_the_upstream_server_has_every_fixture(
    revision: str, scenarios: list[str], upstream: str, tmp_path: Path
) -> None:
    verdict = judged(upstream, tmp_path, "--requirements", revision)
    conforms(verdict, [*scenarios, *(TASKS if revision == MODERN else ())])


@whole
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_the_gateway_conforms(
    revision: str, scenarios: list[str], gateway: str, tmp_path: Path
) -> None:
    conforms(judged(gateway, tmp_path, "--requirements", revision), [*scenarios, *BEYOND[revision]])


@whole
@pytest.mark.parametrize("revision", [MODERN, HANDSHAKE])
def test_the_gateway_page_lists_every_required_scenario(
    revision: str, scenarios: list[str]
) -> None:
    served = PAGE.read_text(encoding="utf-8").partition("# Conformance: Bonobot as a server")[2]
    table = served.partition(f"## {revision}")[2].partition("## ")[0]
    assert re.findall(r"^\| `(\S+)` \|", table, re.MULTILINE) == scenarios
