"""Learning: the secrets of each organization that this process has come to know.

Sealed values report themselves when they are opened or written, so a new token is masked from its
first use on. What an organization's secrets are masked with never knows those of another one: else
a guess could be tried out by looking at what comes out masked.
"""

import re
import threading
from collections import OrderedDict
from dataclasses import dataclass

from bonobot.lib.masking import Memory, ordinary

MOST = 4096  # secrets of one organization, the latest
ORGANIZATIONS = 256
LENGTHS = range(6, 16_385)


@dataclass(frozen=True, slots=True)
class Reading:
    """When an organization's sealed rows were read, at which generation, and what was there."""

    generation: int
    at: float
    marks: frozenset[str]


class Known(Memory):
    """An organization's secrets; forgotten together with the reading that they came from."""

    reading: Reading | None = None


_CREDENTIALS = re.compile(r"[A-Za-z]+ +(\S+)")  # of an `Authorization` header
_lock = threading.Lock()
_memories: OrderedDict[str, Known] = OrderedDict()


def memory_of(organization: str) -> Known:
    """Return what is known of an organization's secrets, empty at first."""
    with _lock:
        memory = _memories.get(organization)
        if memory is None:
            memory = _memories[organization] = Known(MOST)
            if len(_memories) > ORGANIZATIONS:
                _memories.popitem(last=False)
        _memories.move_to_end(organization)
        return memory


def learn(organization: str, secret: str) -> None:
    """Mask this secret in what is stored and shown of the organization from now on."""
    parts = {secret}
    if scheme := _CREDENTIALS.fullmatch(secret):
        parts.add(scheme[1])
    for part in parts:
        if len(part) in LENGTHS and not ordinary(part):
            memory_of(organization).add(part)
