"""Remove markup from descriptions before a model reads them (pure).

A reviewer may not see what a comment or an unusual tag hides, but a model reads it.
"""

import re
from functools import lru_cache

# Possessive quantifiers and excluded characters keep these linear.
_COMMENT = re.compile(r"<!--(?:(?!-->).)*+(?:-->|\Z)", re.DOTALL)
_TAG = re.compile(r"</?[A-Za-z!?][^<>]*+>")
_IMAGE = re.compile(r"!\[[^\]\[]*+\]\([^()]*+\)")
# Removing a tag may join the parts of another one: `<<b>script>`.
_MAX_PASSES = 3


@lru_cache(maxsize=8_192)
def strip_markup(text: str) -> str:
    """Return a description without comments, tags and Markdown images."""
    for _ in range(_MAX_PASSES):
        stripped = _TAG.sub("", _IMAGE.sub("", _COMMENT.sub("", text)))
        if stripped == text:
            return text.strip()
        text = stripped
    return text.replace("<", "").strip()
