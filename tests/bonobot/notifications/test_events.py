"""Which events a channel receives."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.notifications.events import EVENTS, SELECTABLE_EVENTS, Severity, is_event_wanted

WORDS = st.sampled_from([severity.word for severity in Severity])


@given(st.sampled_from(SELECTABLE_EVENTS), WORDS)
def test_a_channel_without_events_receives_all_of_its_severity(code, minimum_severity):
    event = EVENTS[code]
    is_wanted = is_event_wanted(event, events=(), minimum_severity=minimum_severity)
    assert is_wanted == (event.severity >= Severity[minimum_severity.upper()])


@given(st.sampled_from(SELECTABLE_EVENTS), st.lists(st.sampled_from(SELECTABLE_EVENTS), min_size=1))
def test_a_channel_with_events_receives_only_those(code, chosen):
    assert is_event_wanted(EVENTS[code], events=chosen, minimum_severity="info") == (code in chosen)


@pytest.mark.parametrize("code", EVENTS)
def test_every_event_fits_its_column_and_has_a_title(code):
    assert len(code) <= 32
    assert EVENTS[code].title
