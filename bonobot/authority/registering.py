"""How often programs may register from one place: each process counts for itself."""

from collections import OrderedDict
from threading import Lock
from time import monotonic_ns

from bonobot.lib.neighbours import neighbourhood
from bonobot.lib.problems import Problem
from bonobot.lib.rates import admit, interval

AT_ONCE = 20
A_MINUTE = 2
PLACES = 10_000

_taken: OrderedDict[str, int] = OrderedDict()
_lock = Lock()


class TooMany(Problem):
    """So many programs registered from there that no other may for a while."""

    code = "too_many_registrations"
    status = 429


def check(address: str) -> None:
    """Count a registration; raises `TooMany`."""
    place = neighbourhood(address)
    with _lock:
        verdict = admit(_taken.get(place, 0), monotonic_ns() // 1_000, interval(A_MINUTE), AT_ONCE)
        if verdict.allowed:
            _taken[place] = verdict.tat
            _taken.move_to_end(place)
        while len(_taken) > PLACES:
            _taken.popitem(last=False)
    if not verdict.allowed:
        raise TooMany("Too many programs registered from this address. Try again later.")
