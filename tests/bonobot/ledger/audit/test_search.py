"""Which searches of the audit log use an index, and which scan entries."""

import pytest

from bonobot.core.problems import InvalidInput
from bonobot.ledger.audit.search import (
    MAX_TEXT_LENGTH,
    MAX_WORDS,
    SearchCriteria,
    build_text_filter,
)


def test_a_filter_with_one_index_needs_no_estimate() -> None:
    assert not SearchCriteria().needs_scan
    assert not SearchCriteria({"code": "timeout"}).needs_scan


def test_a_search_with_two_indexes_uses_the_narrower_one() -> None:
    criteria = SearchCriteria({"outcome": "refused", "server_id": "1"})
    assert criteria.needs_scan
    assert criteria.leading_filter == {"server_id": "1"}


def test_a_code_leads_the_scan_under_its_old_and_new_names() -> None:
    criteria = SearchCriteria({"code": "not_ticked", "outcome": "refused"})
    assert criteria.leading_filter == {"code__in": ["not_selected", "not_ticked"]}


def test_other_searches_scan_entries_by_time() -> None:
    assert SearchCriteria(has_other_filters=True).needs_scan
    assert SearchCriteria(has_other_filters=True).leading_filter == {}


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("word " * (MAX_WORDS + 1), "Use at most 16 search terms."),
        ("w" * (MAX_TEXT_LENGTH + 1), "Use at most 1000 characters."),
    ],
)
def test_a_search_is_refused_when_it_exceeds_a_limit(text: str, remedy: str) -> None:
    with pytest.raises(InvalidInput) as raised:
        build_text_filter(text)
    assert (raised.value.field, raised.value.remedy) == ("q", remedy)
