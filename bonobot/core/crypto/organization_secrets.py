"""A masker for all encrypted values of an organization.

Values are read again when the policy generation changes and after a minute (new tokens of other
processes don't change a policy). Only new values are decrypted. Old secrets stay masked as long as
the process runs.
"""

import time
from collections.abc import Iterator
from typing import Any
from uuid import UUID

from bonobot.core.crypto.encrypted_fields import SealedValue, UnreadableSecret, list_sealed_fields
from bonobot.core.text.masking import Masker, SecretsReading, get_organization_secrets


def load_masker(organization_id: UUID, generation: int = 0) -> Masker:
    """Read the organization's encrypted values and return its masker (queries)."""
    memory = get_organization_secrets(str(organization_id))
    known_marks = memory.reading.marks if memory.reading else frozenset()
    read_at, marks = time.monotonic(), set()
    for value in _iterate_sealed_values(organization_id):
        marks.add(value.mark)
        if value.mark not in known_marks:
            _register_value(value)
    masker = memory.get_masker()
    memory.reading = SecretsReading(generation, read_at, frozenset(marks))
    return masker


def mask_organization_secrets(text: str, organization_id: UUID) -> str:
    """Return a text with the organization's stored secrets masked (queries)."""
    memory = get_organization_secrets(str(organization_id))
    masker = memory.find_current_masker(0) or load_masker(organization_id)
    return str(masker.mask_known(text))


def _register_value(value: SealedValue) -> None:
    try:
        value.open()
    except UnreadableSecret:
        return  # the key is gone, so the secret can't be shown anyway


def _iterate_sealed_values(organization_id: UUID) -> Iterator[SealedValue]:
    """Yield the stored encrypted values of an organization's rows, except whole documents."""
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
