"""UUIDs in text from outside."""

from uuid import UUID

import pytest

from bonobot.core.text.uuids import parse_uuid


@pytest.mark.parametrize("text", ["", "helper", "0198c0de", "0198c0de-0000-7000-8000-00000000000g"])
def test_other_text_is_no_uuid(text: str) -> None:
    assert parse_uuid(text) is None


def test_a_uuid_is_read_with_and_without_hyphens() -> None:
    expected = UUID("0198c0de-0000-7000-8000-000000000001")
    assert parse_uuid(str(expected)) == parse_uuid(expected.hex) == expected
