"""Check a call's arguments against the tool's own schema: the second stage of the door."""

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from typing import Any

from jsonschema.exceptions import best_match

from bonobot.lib.by_identity import ByIdentity
from bonobot.lib.problems import Invalid
from bonobot.lib.sayings import say
from mcp_servers.schemas.dialects import Validator, validator_of
from mcp_servers.schemas.fitting import Fits, fitting
from mcp_servers.schemas.judging import DEEPEST, Cost, Judgement, read
from mcp_servers.schemas.sizes import Size, measure
from mcp_servers.schemas.wording import Complaint, complaint_of

INLINE_CHARACTERS = 16 * 1024
INLINE_VALUES = 1_000
# Steps for each value × values, and for each character × characters: some 35 ms each at worst.
INLINE_COST = 10_000
INLINE_MATCHING = 4_000_000
MOST_VALUES = 100_000
MOST_COMPLAINTS = 5
_MOST_ERRORS = 50


class InvalidArguments(Invalid):
    """The arguments don't fit the tool's input schema; `field` is the JSON path."""

    code = "invalid_arguments"
    title = "The arguments don't fit the tool"


class NeedsConfinement(Exception):
    """Checking here could take too long; `mcp_servers.schema_worker.check` does it safely."""


@dataclass(frozen=True, slots=True)
class _Compiled:
    validator: Validator
    cost: Cost
    fits: Fits | None


def check_arguments(schema: Any, arguments: Any, judgement: Judgement) -> None:
    """Check `arguments` here and now: only what fits the inline bounds, at most some 70 ms.

    Raises `InvalidArguments`, `Invalid` (`schema_refused`), or `NeedsConfinement` when the schema,
    the arguments or both together are too much.
    """
    size = bounded(arguments)
    if judgement.verdict == "refused":
        raise Invalid(
            f"The tool's input schema can't be used. {judgement.reason}".strip(),
            code="schema_refused",
            remedy="The server has to change it; the tool's page shows where.",
        )
    if judgement.verdict != "inline":
        raise NeedsConfinement(judgement.reason)
    compiled = _inline(schema, size)
    if compiled.fits is not None and compiled.fits(arguments):
        return
    if (found := _violation(compiled.validator, arguments)) is not None:
        raise found


def fit(schema: Any, arguments: Any) -> bool:
    """Tell whether `arguments` fit a schema of our own people's, within the same bounds.

    Raises `InvalidArguments` for what is no JSON object at all, and `NeedsConfinement`.
    """
    compiled = _inline(schema, bounded(arguments))
    if compiled.fits is not None:
        return compiled.fits(arguments)
    return bool(compiled.validator.is_valid(arguments))


def _inline(schema: Any, size: Size) -> _Compiled:
    """Return what is compiled of a schema, if it may be used here for arguments of this size."""
    if size.values > INLINE_VALUES or size.characters > INLINE_CHARACTERS:
        raise NeedsConfinement("The arguments are large.")
    compiled = _at_hand.of(schema)
    if (
        compiled.cost.weight * size.values > INLINE_COST
        or compiled.cost.matching * size.characters > INLINE_MATCHING
    ):
        raise NeedsConfinement("The schema and the arguments together are large.")
    return compiled


def violation(schema: Any, arguments: Any) -> InvalidArguments | None:
    """Return what is wrong with `arguments`, however long it takes: for confinement only."""
    return _violation(validator_of(schema), arguments)


def bounded(arguments: Any) -> Size:
    """Return the size of `arguments`; raise `InvalidArguments` beyond any bound."""
    if not isinstance(arguments, dict):
        raise invalid(Complaint("$", "Arguments must be a JSON object.", "Send `{…}`."))
    size = measure(arguments, most=MOST_VALUES, deepest=DEEPEST)
    if size.depth > DEEPEST:
        raise invalid(
            Complaint(
                "$",
                say("The arguments are nested deeper than {deepest}.", deepest=DEEPEST),
                "Flatten them.",
            )
        )
    if size.values > MOST_VALUES:
        raise invalid(
            Complaint(
                "$",
                say("The arguments hold more than {most_values} values.", most_values=MOST_VALUES),
                "Send fewer.",
            )
        )
    if size.unreadable:
        raise invalid(
            Complaint(
                "$",
                "The arguments hold text that is not valid Unicode, or a number that isn't finite.",
                "Send plain JSON.",
            )
        )
    return size


def invalid(complaint: Complaint, others: tuple[dict[str, str], ...] = ()) -> InvalidArguments:
    """Return the problem for a complaint; `others` are further ones, each as REST tells it."""
    return InvalidArguments(
        complaint.detail,
        field=complaint.path,
        remedy=complaint.remedy,
        extra={"errors": list(others)} if others else None,
    )


def _violation(validator: Validator, arguments: Any) -> InvalidArguments | None:
    errors = list(islice(validator.iter_errors(arguments), _MOST_ERRORS))
    if not errors:
        return None
    first = complaint_of(best_match(errors))
    each = {found.path: found for found in map(complaint_of, errors)} if len(errors) > 1 else {}
    others = tuple(
        {"field": found.path, "code": InvalidArguments.code, "detail": found.detail}
        for found in islice(each.values(), MOST_COMPLAINTS)
    )
    return invalid(first, others)


@lru_cache(maxsize=512)
def _compiled(text: str) -> _Compiled:
    """Return the validator for a schema's text; the text is the key, so nothing stays stale."""
    schema = json.loads(text)
    return _Compiled(validator_of(schema), read(schema).cost, fitting(schema))


# The schemas of a snapshot's tools and rules come again and again.
_at_hand = ByIdentity(lambda schema: _compiled(json.dumps(schema)))
