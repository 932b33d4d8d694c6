"""Usage on the command line."""

from datetime import timedelta

import pytest
from django.utils import timezone

from bonobot.accounts.models import Organization
from tests.agents.test_call_activity import create_rollup
from tests.command_line import Bonobot, acme, bonobot

__all__ = ["acme", "bonobot"]

pytestmark = pytest.mark.django_db(transaction=True)


def test_calls_with_an_unknown_outcome_have_a_column_beside_errors(
    bonobot: Bonobot, acme: Organization
) -> None:
    yesterday = timezone.now().replace(hour=0, minute=0, second=0, microsecond=0)
    yesterday -= timedelta(days=1)
    for calls, outcome in ((4, "ok"), (1, "error"), (3, "unknown"), (2, "refused")):
        create_rollup(acme, yesterday, calls, outcome=outcome, grain="day")
    out = bonobot("usage", "show", "--by", "tool", "--since", "7d").out
    columns, *rows = [line.split("\t") for line in out.splitlines() if "\t" in line]
    assert columns[1:5] == ["CALLS", "ERRORS", "UNKNOWN", "DENIED"]
    assert [row[:5] for row in rows] == [[name, "10", "1", "3", "2"] for name in ("add", "total")]
