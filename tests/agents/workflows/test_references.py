"""References of workflows to inputs and to the results of earlier steps."""

import pytest

from agents.workflows.references import UnresolvedReference, fill_references, resolve_pointer

VALUES = {"steps": {"a": {"output": {"list": [1, {"x/y": "deep"}], "no": None}, "text": "${/b}"}}}


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("${/steps/a/output/list}", [1, {"x/y": "deep"}]),
        ("${/steps/a/output/list/0}", 1),
        ("n=${/steps/a/output/list/0}!", "n=1!"),
        ("${/steps/a/output/list/1/x~1y}", "deep"),
        ("${/steps/a/text}", "${/b}"),
        ("<${/steps/a/text}>", "<${/b}>"),
        ({"k": ["${/steps/a/output/none:-other}"]}, {"k": ["other"]}),
        ("$HOME and ${} and {x}", "$HOME and ${} and {x}"),
    ],
)
def test_references_are_replaced_once(template, expected):
    assert fill_references(template, VALUES) == expected


def test_unknown_references_are_reported():
    for pointer in ("/steps/a/output/none", "/steps/a/output/list/2", "/steps/a/output/no"):
        with pytest.raises(UnresolvedReference) as caught:
            fill_references(f"x ${{{pointer}}}", VALUES)
        assert caught.value.field == pointer
    assert resolve_pointer(VALUES, "/steps/a/output/list/-1") == (False, None)
