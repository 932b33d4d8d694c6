"""Masker of everything sealed for an organization.

Read when the policy generation is another one, and after a minute (tokens that another process got
change no policy). Only values that are new since the last time are opened. What was a secret once
stays masked while this process lives.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from bonobot.core.crypto.encrypted_fields import SealedValue, list_sealed_fields
from bonobot.core.crypto.sealed_values import UnreadableSecret
from bonobot.core.text.masking import Masker, SecretsReading, get_organization_secrets

FRESH_S = 60.0


def find_cached_masker(organization_id: UUID, generation: int) -> Masker | None:
    """Return the organization's masker, or None where its rows have to be read first."""
    memory = get_organization_secrets(str(organization_id))
    reading = memory.reading
    if reading is None or reading.generation < generation:
        return None
    return memory.masker() if time.monotonic() - reading.at < FRESH_S else None


def read_masker(organization_id: UUID, generation: int = 0) -> Masker:
    """Return the organization's masker after a look at its sealed rows (queries)."""
    memory = get_organization_secrets(str(organization_id))
    known = memory.reading.marks if memory.reading else frozenset()
    at, marks = time.monotonic(), set()
    for value in _iterate_sealed_values(organization_id):
        marks.add(value.mark)
        if value.mark not in known:
            _learn(value)
    masker = memory.masker()
    memory.reading = SecretsReading(generation, at, frozenset(marks))
    return masker


def mask_organization_secrets(text: str, organization_id: UUID) -> str:
    """Return a text without the organization's stored secrets, whatever else it says (queries)."""
    masker = find_cached_masker(organization_id, 0) or read_masker(organization_id)
    return str(masker.exact(text))


def _learn(value: SealedValue) -> None:
    try:
        value.open()
    except UnreadableSecret:
        return  # sealed with a key that is gone: nobody can know it, nor show it


def _iterate_sealed_values(organization_id: UUID) -> Iterator[SealedValue]:
    """Yield what is stored in the sealed fields of an organization's rows; whole documents not."""
    by_model: dict[Any, list[str]] = {}
    for field in list_sealed_fields():
        if field.codec.remembered:
            by_model.setdefault(field.model, []).append(field.name)
    for model, names in by_model.items():
        rows = model._base_manager.filter(organization_id=organization_id)
        for row in rows.only("pk", "organization_id", *names).iterator():
            for name in names:
                if (value := getattr(row, name)) and value.stored:
                    yield value
