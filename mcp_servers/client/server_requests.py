"""The kinds of requests that servers may send: sampling, elicitation and roots."""

from typing import Literal

Asked = Literal["sampling", "elicitation", "roots"]

METHODS: dict[str, Asked] = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
