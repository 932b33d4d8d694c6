"""The kinds of requests that servers may send: sampling, elicitation and roots."""

from typing import Literal

ServerRequestKind = Literal["sampling", "elicitation", "roots"]

KINDS_BY_METHOD: dict[str, ServerRequestKind] = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
