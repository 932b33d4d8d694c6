import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.crypto.key_files import generate_signing_key
from bonobot.core.crypto.signatures import StatementSigner

FACTS = {"seq": 7, "digest": "d" * 64}
KEY = generate_signing_key()


def test_a_signed_statement_is_valid_and_names_its_key() -> None:
    signer = StatementSigner([KEY])
    statement = signer.sign(FACTS)
    assert signer.is_valid(statement)
    assert list(signer.public_keys) == [statement["key"]]


def test_old_keys_verify_and_the_first_one_signs() -> None:
    old, both = StatementSigner([KEY]), StatementSigner([generate_signing_key(), KEY])
    assert both.is_valid(old.sign(FACTS))
    assert not old.is_valid(both.sign(FACTS))


@given(st.sampled_from(["seq", "digest", "key", "signature"]), st.text() | st.integers())
def test_a_modified_statement_is_invalid(name: str, value: object) -> None:
    signer = StatementSigner([KEY])
    statement = signer.sign(FACTS)
    changed = {**statement, name: value}
    assert signer.is_valid(changed) is (changed == statement)


@pytest.mark.parametrize("statement", [{}, {"key": 5}, {"signature": "é"}])
def test_a_value_that_isnt_a_statement_is_invalid(statement: dict[str, object]) -> None:
    assert not StatementSigner([KEY]).is_valid(statement)
