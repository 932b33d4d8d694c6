"""Which processes have certainly ended."""

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bonobot.core import process_identity
from bonobot.core.process_identity import ProcessIdentity, has_ended, identify_this_process

THIS = identify_this_process()

pytestmark = pytest.mark.skipif(not THIS.machine, reason="this machine can't be identified")


def test_this_process_runs():
    assert not has_ended(THIS)


def test_a_process_whose_id_is_unused_has_ended():
    with subprocess.Popen([sys.executable, "-c", ""]) as child:
        child.wait()
    assert has_ended(ProcessIdentity(THIS.machine, child.pid))


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_zombie_has_ended():
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    try:
        assert has_ended(ProcessIdentity(THIS.machine, child))
    finally:
        os.waitpid(child, 0)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs /proc")
def test_a_process_with_a_reused_id_has_ended():
    assert has_ended(replace(THIS, started="1"))


def test_nothing_is_proven_about_another_machine():
    assert not has_ended(ProcessIdentity("another machine", 2**22 + 1))
    assert not has_ended(ProcessIdentity("", 2**22 + 1))


def test_a_process_of_another_user_runs(monkeypatch):
    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(process_identity.os, "kill", refuse)
    assert not has_ended(replace(THIS, started="1"))


def test_a_process_that_tells_nothing_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(process_identity, "PROC", tmp_path)
    assert not has_ended(replace(THIS, started="1"))
