"""The writer and its process: killed, ended, forked."""

import os
import signal
import subprocess
import sys
from uuid import UUID

import pytest
from django.conf import settings

from bonobot.ledger.models import AuditRow
from bonobot.ledger.verify import verify
from tests.parts import ROOT
from tests.processes import environment

WAIT_S = 30.0
SCRIPT = """
import os, sys, uuid
import django
django.setup()
from bonobot.ledger.entries import Admission
from bonobot.ledger.writer import writer
from tests.bonobot.ledger.cast import opening_of

organization = uuid.UUID(sys.argv[1])
"""


def run(script: str, organization_id: UUID) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", SCRIPT + script, str(organization_id)],
        cwd=ROOT,
        env=environment(
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
def test_a_process_that_is_killed_leaves_the_opened_row(organization_id: UUID) -> None:
    script = """
call = opening_of(organization)
writer().admit(Admission(call)).result()
print(call.call_id, flush=True)
sys.stdin.read()
"""
    with run(script, organization_id) as process:
        assert process.stdout is not None
        call_id = process.stdout.readline().strip()
        process.kill()
        assert process.wait(WAIT_S) == -signal.SIGKILL
    row = AuditRow.objects.get()
    assert (str(row.id), row.outcome) == (call_id, "open")
    assert verify(organization_id).ok


@pytest.mark.django_db(transaction=True)
def test_a_process_that_ends_writes_its_counts_first(organization_id: UUID) -> None:
    script = """
for _ in range(10):
    writer().refuse(opening_of(organization, decision="deny", code="denied"))
"""
    with run(script, organization_id) as process:
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    assert AuditRow.objects.get().repeats == 9
    assert verify(organization_id).ok


@pytest.mark.django_db(transaction=True)
def test_a_forked_process_has_a_writer_of_its_own(organization_id: UUID) -> None:
    script = """
parent = writer()
parent.admit(Admission(opening_of(organization))).result()
if os.fork() == 0:
    assert writer() is not parent
    writer().admit(Admission(opening_of(organization))).result(20)
    sys.exit(0)
assert os.wait()[1] == 0
assert writer() is parent
parent.admit(Admission(opening_of(organization))).result(20)
"""
    with run(script, organization_id) as process:
        process.communicate(timeout=WAIT_S)
    assert process.returncode == 0
    report = verify(organization_id)
    assert (report.ok, report.rows) == (True, 3)
