"""Which script a character is written in, as far as invisible characters depend on it."""

import re
import unicodedata
from functools import lru_cache

# Scripts whose letters change with their neighbours, so that joiners decide what a word looks like.
_JOINING = {
    "ADLAM", "ARABIC", "BALINESE", "BENGALI", "BRAHMI", "CHAKMA", "DEVANAGARI", "GRANTHA",
    "GUJARATI", "GURMUKHI", "HANIFI", "JAVANESE", "KAITHI", "KANNADA", "KHMER", "KHOJKI",
    "KHUDAWADI", "MALAYALAM", "MANDAIC", "MANICHAEAN", "MEETEI", "MODI", "MONGOLIAN", "MYANMAR",
    "NEWA", "NKO", "ORIYA", "PHAGS-PA", "SHARADA", "SINHALA", "SYRIAC", "TAKRI", "TAMIL",
    "TELUGU", "TIBETAN", "TIRHUTA",
}  # fmt: skip
# Scripts written without spaces, where a zero-width space marks the end of a word.
SPACELESS = {
    "BALINESE", "JAVANESE", "KHMER", "LAO", "MYANMAR", "NEW", "TAI", "THAI", "TIBETAN",
}  # fmt: skip

IDEOGRAPH = re.compile("[\u3005\u3007\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U000323af]")
RIGHT_TO_LEFT = re.compile(
    "[\u05d0-\u05f4\u0620-\u065f\u066e-\u08ff\ufb1d-\ufdff\ufe70-\ufefc"
    "\U00010800-\U00010fff\U0001e800-\U0001efff]"
)
# Unicode's Extended_Pictographic, reserved places included: newer emoji than Python knows pass too.
_PICTOGRAPHIC = re.compile(
    "[\xa9\xae\u203c\u2049\u2122\u2139\u2194-\u2199\u21a9\u21aa\u231a\u231b\u2328\u2388\u23cf"
    "\u23e9-\u23f3\u23f8-\u23fa\u24c2\u25aa\u25ab\u25b6\u25c0\u25fb-\u25fe\u2600-\u2605"
    "\u2607-\u2612\u2614-\u2685\u2690-\u2705\u2708-\u2712\u2714\u2716\u271d\u2721\u2728\u2733"
    "\u2734\u2744\u2747\u274c\u274e\u2753-\u2755\u2757\u2763-\u2767\u2795-\u2797\u27a1\u27b0\u27bf"
    "\u2934\u2935\u2b05-\u2b07\u2b1b\u2b1c\u2b50\u2b55\u3030\u303d\u3297\u3299"
    "\U0001f000-\U0001f0ff\U0001f10d-\U0001f10f\U0001f12f\U0001f16c-\U0001f171"
    "\U0001f17e\U0001f17f\U0001f18e\U0001f191-\U0001f19a\U0001f1ad-\U0001f1e5"
    "\U0001f201-\U0001f20f\U0001f21a\U0001f22f\U0001f232-\U0001f23a\U0001f23c-\U0001f23f"
    "\U0001f249-\U0001f3fa\U0001f400-\U0001f53d\U0001f546-\U0001f64f\U0001f680-\U0001f6ff"
    "\U0001f774-\U0001f77f\U0001f7d5-\U0001f7ff\U0001f80c-\U0001f80f\U0001f848-\U0001f84f"
    "\U0001f85a-\U0001f85f\U0001f888-\U0001f88f\U0001f8ae-\U0001f8ff\U0001f90c-\U0001f93a"
    "\U0001f93c-\U0001f945\U0001f947-\U0001faff\U0001fc00-\U0001fffd]"
)


@lru_cache(maxsize=4096)
def script(character: str) -> str:
    """Return the first word of the character's name, which names its script; "" for none."""
    return unicodedata.name(character, "").partition(" ")[0] if character else ""


def joins(character: str) -> bool:
    """Tell whether this is a letter or mark of a script in which joiners matter."""
    return script(character) in _JOINING and unicodedata.category(character)[0] in "LM"


def pictographic(character: str) -> bool:
    """Tell whether an emoji can be made of this character."""
    return bool(_PICTOGRAPHIC.match(character))
