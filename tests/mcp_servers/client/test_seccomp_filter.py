"""The filter of file modes, for each architecture and in a real bubblewrap."""

import errno
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from mcp_servers.client.sandbox import build_namespace_arguments, build_system_arguments
from mcp_servers.client.seccomp_filter import (
    ARCHITECTURES,
    SET_ID_BITS,
    build_mode_filter,
    open_mode_filter,
)

ALLOW, ERROR = 0x7FFF0000, 0x00050000
O_CREAT = 0o100


def run_filter(machine: str, number: int, arguments: list[int], *, architecture: int = 0) -> int:
    """Interpret the filter for a system call; return its verdict."""
    program = [*struct.iter_unpack("<HBBI", build_mode_filter(machine))]
    data = struct.pack("<IIQ", number, architecture or ARCHITECTURES[machine][0], 0)
    data += struct.pack("<6Q", *arguments, *[0] * (6 - len(arguments)))
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = program[position]
        position += 1
        if code == 0x06:
            return int(value)
        if code == 0x20:
            (accumulator,) = struct.unpack_from("<I", data, value)
            continue
        is_true = {
            0x15: accumulator == value,
            0x35: accumulator >= value,
            0x45: bool(accumulator & value),
        }[code]
        position += if_true if is_true else if_false


NUMBERS = {
    "x86_64": 0xC000003E,
    "aarch64": 0xC00000B7,
    "riscv64": 0xC00000F3,
    "loongarch64": 0xC0000102,
}
# openat, mknodat, fchmod, fchmodat, fchmodat2: the same numbers on newer architectures.
NEWER_ARCHITECTURES = ("aarch64", "riscv64", "loongarch64")


def test_each_machine_has_its_number_and_calls() -> None:
    numbers = {machine: number for machine, (number, _calls) in ARCHITECTURES.items()}
    assert numbers == NUMBERS
    for machine in NEWER_ARCHITECTURES:
        assert {number for number, _mode, _flags in ARCHITECTURES[machine][1]} == {
            *(56, 33, 52, 53, 452)
        }


CALLS = [
    (machine, number, mode, flags)
    for machine, (_architecture, calls) in ARCHITECTURES.items()
    for number, mode, flags in calls
]


@pytest.mark.parametrize(("machine", "number", "mode", "flags"), CALLS)
def test_a_call_fails_only_if_it_sets_a_bit(
    machine: str, number: int, mode: int, flags: int | None
) -> None:
    for bits in range(0o10000):
        arguments = [0] * 6
        arguments[mode] = bits
        if flags is not None:
            assert run_filter(machine, number, arguments) == ALLOW
            arguments[flags] = O_CREAT
        expected = ERROR | errno.EPERM if bits & SET_ID_BITS else ALLOW
        if bits % 37 == 0 or bits & SET_ID_BITS == bits:
            assert run_filter(machine, number, arguments) == expected


@pytest.mark.parametrize("machine", ARCHITECTURES)
def test_calls_of_other_architectures_and_newer_ones_dont_exist(machine: str) -> None:
    for number in (425, 426, 427, 437):
        assert run_filter(machine, number, []) == ERROR | errno.ENOSYS
    assert run_filter(machine, 0, [], architecture=0x40000003) == ERROR | errno.ENOSYS
    assert run_filter("x86_64", 0x40000000 + 90, []) == ERROR | errno.ENOSYS
    assert run_filter(machine, 0, []) == ALLOW


SCRIPT = """
import os, stat
def attempt(name, function):
    try:
        function()
    except OSError as error:
        print(name, error.strerror, sep=": ")
    else:
        print(name, "done", sep=": ")
attempt("suid", lambda: os.chmod("file", 0o4755))
attempt("plain", lambda: os.chmod("file", 0o755))
attempt("device", lambda: os.mknod("device", stat.S_IFBLK | 0o600, os.makedev(8, 0)))
attempt("pipe", lambda: os.mkfifo("pipe"))
attempt("link", lambda: os.link("/usr/bin/env", "link"))
flags = open("/proc/self/status").read()
print("NoNewPrivs:\t1" in flags, "CapEff:\t0000000000000000" in flags)
for line in open("/proc/self/mountinfo"):
    fields = line.split()
    if fields[4] == os.getcwd():
        print({"nosuid", "nodev"} <= set(fields[5].split(",")))
"""


@pytest.mark.sandbox
@pytest.mark.skipif(platform.machine() not in ARCHITECTURES, reason="no filter for this machine")
def test_a_sandbox_has_no_bits_devices_and_privileges(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    descriptor = open_mode_filter()
    words = [
        *build_namespace_arguments(network=False, forbids_namespaces=False, mode_filter=descriptor),
        *build_system_arguments(network=False),
        *("--ro-bind-try", sys.base_prefix, sys.base_prefix),
        *("--bind", str(tmp_path), "/work", "--chdir", "/work", "--"),
        *(str(Path(sys.executable).resolve()), "-I", "-c", SCRIPT),
    ]
    output = subprocess.run(
        words, pass_fds=(descriptor,), capture_output=True, text=True, check=True
    ).stdout
    assert output.splitlines() == [
        "suid: Operation not permitted",
        "plain: done",
        "device: Operation not permitted",
        "pipe: done",
        "link: Invalid cross-device link",
        "True True",
        "True",
    ]
