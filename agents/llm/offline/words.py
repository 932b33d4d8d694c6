"""Words of messages and of tool definitions: cut, lowered, stemmed a little, and a few synonyms."""

import re
from collections.abc import Iterable

WORD = re.compile(r"[A-Za-z]+|\d+")
CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def listed(text: str) -> frozenset[str]:
    """Return the words that a table lists, separated by spaces."""
    return frozenset(text.split())


STOP = listed(
    "a about all also am an and any are as at be been but by can could did do does for from had "
    "has have he her here him his how i if in into is it its itself just let may me might my no "
    "not now of off ok on or our out please shall she should so some such than that the their "
    "them then there these they this those to too us very was we were what whats when where "
    "which who whom why will with would you your yours hi hello hey thanks thank s t m re ve ll "
    "want need like tell via using whether e g last first latest recent newest top everything "
    "anything nothing something"
)
# They say that something is wanted, hardly what.
WEAK = listed("show give get print display make run use call tool mcp see")
# A tool named so is picked only by somebody who says so.
HARMFUL = listed(
    "delete remove drop destroy reset kill purge truncate terminate revoke erase wipe uninstall "
    "disable cancel stop"
)
# A tool named so changes something; it is picked less easily by who doesn't say so.
CHANGING = listed(
    "add apply commit create edit insert merge move post publish push put rename send set submit "
    "update upload write"
)
# A message that begins so wants to know something: "show commits" is not "commit".
ASKING = listed(
    "show give get print display see view list read what whats which who when where how is are"
)
SYNONYMS = {
    "add": ("sum", "plus"),
    "clock": ("time",),
    "commit": ("log",),
    "compare": ("diff",),
    "difference": ("diff",),
    "change": ("diff", "status"),
    "directory": ("folder",),
    "download": ("fetch",),
    "erase": ("delete",),
    "find": ("search",),
    "folder": ("directory",),
    "history": ("log",),
    "hour": ("time",),
    "look": ("search",),
    "open": ("read",),
    "page": ("url", "fetch"),
    "plus": ("sum", "add"),
    "remove": ("delete",),
    "repeat": ("echo",),
    "say": ("echo",),
    "site": ("url", "fetch"),
    "sum": ("add",),
    "switch": ("checkout",),
    "total": ("sum",),
    "unstage": ("reset",),
    "weather": ("forecast",),
    "website": ("url", "fetch"),
}


def words(text: str) -> list[str]:
    """Return the words of a text or an identifier, lowered: `getCurrent_time` is three."""
    return [word.lower() for word in WORD.findall(CAMEL.sub(" ", text.replace("'", "")))]


def stem(word: str) -> str:
    """Return a word without the endings that grammar gave it."""
    if len(word) > 4:
        if word.endswith("ies"):
            return word[:-3] + "y"
        if word.endswith(("ches", "shes", "sses", "xes")):
            return word[:-2]
    if len(word) > 3 and word.endswith("s") and not word.endswith(("ss", "us", "is")):
        word = word[:-1]
    for ending in ("ing", "ed"):
        if len(word) > len(ending) + 3 and word.endswith(ending):
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 5 and word.endswith("e") else word


def stems(text: str) -> list[str]:
    """Return the stems of a text's words, in order."""
    return [stem(word) for word in words(text)]


def content(text: str) -> list[str]:
    """Return the stems of the words that carry meaning, in order."""
    return [stem(word) for word in words(text) if word not in STOP]


def also(term: str) -> Iterable[str]:
    """Return what else could have been said for a stem."""
    return BY_STEM.get(term, ())


BY_STEM = {stem(word): tuple(stem(other) for other in also) for word, also in SYNONYMS.items()}
WEAK_STEMS = frozenset(stem(word) for word in WEAK)
CHANGING_STEMS = frozenset(stem(word) for word in CHANGING)
HARMFUL_STEMS = frozenset(stem(word) for word in HARMFUL)
