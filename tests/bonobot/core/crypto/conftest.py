"""Fixtures for encrypted fields: a table, a row, another key."""

from collections.abc import Iterator
from typing import Any

import pytest
from cryptography.fernet import Fernet, MultiFernet
from django.apps import apps
from django.db import connection
from encrypted_model_fields import fields as kept_library

from tests.bonobot.core.crypto.encrypted_rows import FIRST, SECRET, Row


@pytest.fixture(scope="module")
def table(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock():
        with connection.schema_editor() as editor:
            editor.create_model(Row)
        yield
        with connection.schema_editor() as editor:
            editor.delete_model(Row)


@pytest.fixture
def row(table: None, db: None) -> Row:
    return Row.objects.create(organization_id=FIRST, secret=SECRET)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make Django find the model by name although its app isn't installed."""
    monkeypatch.setattr(apps, "get_model", lambda *_: Row)


@pytest.fixture
def other_key(monkeypatch: pytest.MonkeyPatch) -> Fernet:
    """Replace the keys by a new one, as if the old ones were lost."""
    key = Fernet(Fernet.generate_key())
    monkeypatch.setattr(kept_library, "CRYPTER", MultiFernet([key]))
    return key
