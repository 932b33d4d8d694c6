"""What Schemathesis checks beside its own checks: every error is a problem that says its code."""

import re

import schemathesis

CODE = re.compile(r"[a-z][a-z0-9_]*")


@schemathesis.check
def problems_have_a_code(
    ctx: schemathesis.CheckContext, response: schemathesis.Response, case: schemathesis.Case
) -> None:
    """Fail where an error isn't RFC 9457's, or is one that is nobody's fault but ours."""
    if response.status_code < 400:
        return
    kind = response.headers.get("content-type", [""])[0]
    assert kind == "application/problem+json", f"an error of the type {kind!r}"
    problem = response.json()
    assert problem["status"] == response.status_code
    assert CODE.fullmatch(problem["code"]), problem
    assert problem["code"] not in ("error", "internal_error"), problem
