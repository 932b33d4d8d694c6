"""Limit the memory that the C library keeps for each thread.

glibc gives threads up to eight arenas for each core, and returns what is free in one of them
neither to the others nor to the system. Python's threads allocate one after the other, so they need
few.
"""

import ctypes
import sys

M_ARENA_MAX = -8  # of mallopt
MAX_ARENAS = 2


def limit_memory_arenas() -> None:
    """Have all threads share two arenas; call it before threads start. Only glibc has arenas."""
    if sys.platform.startswith("linux"):
        set_option = getattr(ctypes.CDLL(None), "mallopt", None)
        if set_option is not None:
            set_option(M_ARENA_MAX, MAX_ARENAS)
