"""The writer and its process: killed, ended, forked."""

import json
import os
import signal
import subprocess
import sys
from typing import Never
from uuid import UUID

import pytest
from django.conf import settings
from django.db import OperationalError

from agents.budgets.limits import build_charge
from bonobot.core import rate_limiter
from bonobot.ledger.admission import AuditUnavailable
from bonobot.ledger.models import AuditRow
from bonobot.ledger.types import Admission
from bonobot.ledger.writer import committer
from bonobot.ledger.writer.writer_thread import LedgerWriter
from tests.bonobot.ledger.factories import opening_of
from tests.ledger_chain import verify_whole_chain
from tests.parts import ROOT
from tests.processes import build_environment

WAIT_S = 30.0
SCRIPT = """
import os, sys, uuid
import django
django.setup()
from bonobot.ledger.types import Admission
from bonobot.ledger.writer.writer_thread import get_writer
from tests.bonobot.ledger.factories import opening_of

organization = uuid.UUID(sys.argv[1])
"""


# The duration of the rate test; `TEST_RATE_S=600` measures ten minutes.
RATE_S = int(os.environ.get("TEST_RATE_S", "3"))
PER_MINUTE = 1_200
CLIENTS = 10  # per process


def run_script(script: str, organization_id: UUID) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script, str(organization_id)],
        cwd=ROOT,
        env=build_environment(
            {
                "DJANGO_SETTINGS_MODULE": str(settings.SETTINGS_MODULE),
                "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
            }
        ),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.django_db(transaction=True)
def test_a_killed_process_leaves_the_open_entry(organization_id: UUID) -> None:
    script = """
call = opening_of(organization)
get_writer().admit_call(Admission(call)).result()
print(call.call_id, flush=True)
sys.stdin.read()
"""
    with run_script(script, organization_id) as process:
        assert process.stdout is not None
        call_id = process.stdout.readline().strip()
        process.kill()
        assert process.wait(WAIT_S) == -signal.SIGKILL
    row = AuditRow.objects.get()
    assert (str(row.id), row.outcome) == (call_id, "open")
    assert verify_whole_chain(organization_id).ok


@pytest.mark.django_db(transaction=True)
def test_a_process_writes_its_counts_before_it_ends(organization_id: UUID) -> None:
    script = """
for _ in range(10):
    get_writer().record_refusal(opening_of(organization, decision="deny", code="denied"))
"""
    with run_script(script, organization_id) as process:
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert AuditRow.objects.get().repeats == 9
    assert verify_whole_chain(organization_id).ok


@pytest.mark.django_db(transaction=True)
def test_a_forked_process_has_its_own_writer(organization_id: UUID) -> None:
    script = """
parent = get_writer()
parent.admit_call(Admission(opening_of(organization))).result()
if os.fork() == 0:
    assert get_writer() is not parent
    get_writer().admit_call(Admission(opening_of(organization))).result(20)
    sys.exit(0)
assert os.wait()[1] == 0
assert get_writer() is parent
parent.admit_call(Admission(opening_of(organization))).result(20)
"""
    with run_script(script, organization_id) as process:
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    report = verify_whole_chain(organization_id)
    assert (report.ok, report.rows) == (True, 3)


@pytest.mark.django_db(transaction=True)
def test_two_processes_with_twenty_clients_admit_no_more_than_the_rate_allows(
    organization_id: UUID,
) -> None:
    """Check limits that hold on any machine: each call was decided between two measured times.

    GCRA loses nothing while the burst isn't available again, so at least the calls due up to the
    last denial are admitted; and in any window at most the burst plus the calls due in it.
    """
    script = f"""
import asyncio, json, time
from agents.budgets.limits import build_charge
from bonobot.ledger.admission import RateLimited

rate = build_charge(organization, "organization", organization, {PER_MINUTE})

async def ask(calls):
    began = time.time_ns() // 1000
    try:
        await get_writer().admit_call_async(Admission(opening_of(organization), charges=(rate,)))
    except RateLimited as refused:
        calls.append((began, time.time_ns() // 1000, False))
        await asyncio.sleep(refused.retry_after)
        return False
    calls.append((began, time.time_ns() // 1000, True))
    return True

async def client(until):
    calls = []
    while await ask(calls) or time.monotonic() < until:
        pass
    return calls

async def main():
    until = time.monotonic() + {RATE_S}
    results = await asyncio.gather(*[client(until) for _ in range({CLIENTS})])
    print(json.dumps(dict(burst=rate.burst, calls=sum(results, []))), flush=True)

asyncio.run(main())
"""
    processes = [run_script(script, organization_id) for _ in range(2)]
    outputs = [
        json.loads(process.communicate(timeout=WAIT_S + 2 * RATE_S)[0]) for process in processes
    ]
    burst, interval = outputs[0]["burst"], rate_limiter.compute_interval(PER_MINUTE)
    calls = [tuple(call) for output in outputs for call in output["calls"]]
    passed = sorted((started, ended) for started, ended, admitted in calls if admitted)
    denied_at = [started for started, _, admitted in calls if not admitted]
    assert len(denied_at) >= 2 * CLIENTS

    first, last = passed[0][0], max(ended for _, ended in passed)
    assert len(passed) <= (last - first) / interval + burst
    first_decided_by = min(ended for _, ended in passed)
    due = (max(denied_at) - first_decided_by) / interval + burst - 1
    assert len(passed) >= due
    expected = (max(denied_at) - first) / interval + burst
    change = 100 * (len(passed) / expected - 1)
    print(f"{len(passed)} passed of {expected:.1f}: {change:+.2f} %")  # noqa: T201
    for start in {started for started, _ in passed}:
        within = sorted(ended for started, ended in passed if started >= start)
        for count, end in enumerate(within, start=1):
            assert count <= (end - start) / interval + burst
    assert AuditRow.objects.count() == len(passed)
    assert verify_whole_chain(organization_id).ok


@pytest.mark.django_db(transaction=True)
def test_no_call_is_admitted_while_the_rate_store_is_unavailable(
    organization_id: UUID, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> Never:
        raise OperationalError("the store is away")

    monkeypatch.setattr(committer, "open_database", fail)
    writer = LedgerWriter(deadline_s=0.2)
    rate = build_charge(organization_id, "organization", organization_id, PER_MINUTE)
    try:
        future = writer.admit_call(Admission(opening_of(organization_id), charges=(rate,)))
        with pytest.raises(AuditUnavailable) as raised:
            future.result(WAIT_S)
        assert raised.value.retry_after
    finally:
        writer.close()
    assert not AuditRow.objects.exists()
