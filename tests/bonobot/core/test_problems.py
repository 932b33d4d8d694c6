"""Problems: the errors that every surface renders."""

import pickle

import pytest

from bonobot.core.problems import (
    Conflict,
    Forbidden,
    InvalidInput,
    NotFound,
    Problem,
    ServiceUnavailable,
)


@pytest.mark.parametrize(
    ("kind", "code", "status"),
    [
        (Problem, "error", 400),
        (InvalidInput, "invalid", 400),
        (Forbidden, "forbidden", 403),
        (NotFound, "not_found", 404),
        (Conflict, "conflict", 409),
        (ServiceUnavailable, "unavailable", 503),
    ],
)
def test_each_kind_has_its_code_and_status(kind: type[Problem], code: str, status: int) -> None:
    problem = kind("It went wrong.")
    assert (problem.code, problem.status, str(problem)) == (code, status, "It went wrong.")
    assert kind.title


def test_a_problem_contains_only_the_fields_that_are_set() -> None:
    assert Problem("Short.").as_dict() == {"code": "error", "detail": "Short."}
    full = InvalidInput("No.", code="bad_url", field="url", remedy="Give one.", rule="egress")
    assert full.as_dict() == {
        "code": "bad_url",
        "detail": "No.",
        "field": "url",
        "remedy": "Give one.",
        "rule": "egress",
    }


def test_extra_fields_never_replace_the_standard_ones() -> None:
    problem = ServiceUnavailable("Wait.", retry_after=1.5, extra={"server": "git", "code": "mine"})
    assert problem.as_dict() == {
        "server": "git",
        "code": "unavailable",
        "detail": "Wait.",
        "retry_after": 1.5,
    }


def test_a_custom_code_doesnt_change_the_class() -> None:
    Conflict("One.", code="slug_taken", status=422)
    assert (Conflict.code, Conflict.status) == ("conflict", 409)


def test_a_problem_can_be_pickled() -> None:
    problem = pickle.loads(pickle.dumps(InvalidInput("No.", code="bad", field="x")))  # noqa: S301
    assert problem.as_dict() == {"code": "bad", "detail": "No.", "field": "x"}
