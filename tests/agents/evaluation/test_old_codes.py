"""Audit entries with the codes of version 0.1."""

from agents.evaluation.recordings import DECISION_CODES
from agents.policies.compare_decisions import POLICY_DENIAL_CODES
from bonobot.ledger.audit.renamed_codes import RENAMED_CODES


def test_stored_denials_of_an_attachment_are_denials_by_policy_under_both_codes():
    assert {"denied_by_binding", "denied_by_attachment"} <= POLICY_DENIAL_CODES


def test_recordings_are_replayed_the_same_when_they_have_old_codes():
    replayed = {old for old, new in RENAMED_CODES.items() if new in DECISION_CODES}
    assert replayed <= DECISION_CODES
    assert replayed == {
        "builtin_off",
        "definition_refused",
        "denied_by_binding",
        "not_bound",
    }
