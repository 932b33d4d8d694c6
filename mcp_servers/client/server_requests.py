"""What a server may want of us: an answer of the model, of a person, or the folders to work in."""

from typing import Literal

Asked = Literal["sampling", "elicitation", "roots"]

METHODS: dict[str, Asked] = {
    "sampling/createMessage": "sampling",
    "elicitation/create": "elicitation",
    "roots/list": "roots",
}
