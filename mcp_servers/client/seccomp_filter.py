"""The seccomp filter of the sandbox: which system calls fail.

The filter keeps files from getting a set-user-ID or set-group-ID bit: files of shared folders
have the owner of Bonobot's files, so such a file would run as Bonobot when another user of the host
starts it. System calls that would set a bit fail with EPERM. Those whose arguments a filter can't
read (`openat2`, io_uring), and those of other architectures, fail with ENOSYS, as on kernels
without them; programs then use the older ones.
"""

import errno
import os
import platform
import struct
from collections.abc import Iterable

SET_ID_BITS = 0o6000
CREATES_FILE = 0o100 | 0o20000000  # O_CREAT, O_TMPFILE: otherwise `mode` isn't an argument
NEWER_CALLS = (437, 425, 426, 427)  # openat2, io_uring_*: the same numbers everywhere
X32_CALLS = 0x40000000
# By machine: its number (AUDIT_ARCH_*), then its calls with the position of `mode`, and of `flags`
# for those that may create a file.
_FCHMODAT2 = (452, 2, None)
_GENERIC_CALLS = (
    *((56, 3, 2), (33, 2, None)),  # openat, mknodat
    *((52, 1, None), (53, 2, None), _FCHMODAT2),  # fchmod, fchmodat
)
ARCHITECTURES: dict[str, tuple[int, tuple[tuple[int, int, int | None], ...]]] = {
    "x86_64": (
        0xC000003E,
        (
            *((2, 2, 1), (257, 3, 2)),  # open, openat
            *((85, 1, None), (90, 1, None), (91, 1, None)),  # creat, chmod, fchmod
            *((133, 1, None), (259, 2, None)),  # mknod, mknodat
            *((268, 2, None), _FCHMODAT2),  # fchmodat
        ),
    ),
    # Architectures newer than these calls have no older ones.
    "aarch64": (0xC00000B7, _GENERIC_CALLS),
    "riscv64": (0xC00000F3, _GENERIC_CALLS),
    "loongarch64": (0xC0000102, _GENERIC_CALLS),
}
# Instructions of classic BPF, and the offsets of `struct seccomp_data`.
_LOAD, _RETURN = 0x20, 0x06
_IF_EQUAL, _IF_AT_LEAST, _IF_BITS = 0x15, 0x35, 0x45
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_ALLOW, _FAIL = 0x7FFF0000, 0x00050000
Instruction = tuple[int, int, int, int]


def can_filter_modes() -> bool:
    """Return whether there is a filter for this machine."""
    return hasattr(os, "memfd_create") and platform.machine() in ARCHITECTURES


def open_mode_filter() -> int:
    """Return a descriptor of the filter for `bwrap --seccomp`, which reads it once."""
    descriptor = os.memfd_create("mode_filter", os.MFD_CLOEXEC)
    os.write(descriptor, build_mode_filter(platform.machine()))
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor


def build_mode_filter(machine: str) -> bytes:
    """Return the filter as a program of classic BPF."""
    architecture, calls = ARCHITECTURES[machine]
    program: list[Instruction] = [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_IF_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
        (_LOAD, 0, 0, _NUMBER),
        (_IF_AT_LEAST, 0, 1, X32_CALLS),
        (_RETURN, 0, 0, _FAIL | errno.ENOSYS),
    ]
    for number in NEWER_CALLS:
        program += [(_IF_EQUAL, 0, 1, number), (_RETURN, 0, 0, _FAIL | errno.ENOSYS)]
    for number, mode, flags in calls:
        checks = [*_check_arguments(mode, flags)]
        program += [(_IF_EQUAL, 0, len(checks), number), *checks]
    program.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *instruction) for instruction in program)


def _check_arguments(mode: int, flags: int | None) -> Iterable[Instruction]:
    """Yield the instructions that end a call: an error if it sets a bit."""
    if flags is not None:
        yield (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * flags)
        yield (_IF_BITS, 1, 0, CREATES_FILE)
        yield (_RETURN, 0, 0, _ALLOW)
    yield (_LOAD, 0, 0, _FIRST_ARGUMENT + 8 * mode)
    yield (_IF_BITS, 0, 1, SET_ID_BITS)
    yield (_RETURN, 0, 0, _FAIL | errno.EPERM)
    yield (_RETURN, 0, 0, _ALLOW)
