"""Extract words, values and time zones from text.

Each value has a kind and a span. Strong kinds are unambiguous: a message with such a value is most
likely about a tool that takes one.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from zoneinfo import available_timezones

from bonobot.core.process_cache import compute_once

WORD = re.compile(r"[A-Za-z]+|\d+")
CAMEL_CASE_BOUNDARY = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def split_word_list(text: str) -> frozenset[str]:
    """Return the words of a space-separated list."""
    return frozenset(text.split())


STOP_WORDS = split_word_list(
    "a about all also am an and any are as at be been but by can could did do does for from had "
    "has have he her here him his how i if in into is it its itself just let may me might my no "
    "not now of off ok on or our out please shall she should so some such than that the their "
    "them then there these they this those to too us very was we were what whats when where "
    "which who whom why will with would you your yours hi hello hey thanks thank s t m re ve ll "
    "want need like tell via using whether e g last first latest recent newest top everything "
    "anything nothing something"
)
# Words that say little about which tool is meant.
WEAK_WORDS = split_word_list("show give get print display make run use call tool mcp see")
# A tool with such a verb is only selected if the message has it too.
HARMFUL_WORDS = split_word_list(
    "delete remove drop destroy reset kill purge truncate terminate revoke erase wipe uninstall "
    "disable cancel stop"
)
# A tool with such a verb scores lower if the message doesn't have it.
CHANGING_WORDS = split_word_list(
    "add apply commit create edit insert merge move post publish push put rename send set submit "
    "update upload write"
)
# A message that starts so is a question: "show commits" is not "commit".
QUESTION_WORDS = split_word_list(
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


def split_words(text: str) -> list[str]:
    """Return the words of a text or identifier in lower case: `getCurrent_time` is three."""
    return [
        word.lower() for word in WORD.findall(CAMEL_CASE_BOUNDARY.sub(" ", text.replace("'", "")))
    ]


def to_stem(word: str) -> str:
    """Return a word without its inflectional ending."""
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


def to_stems(text: str) -> list[str]:
    """Return the stems of a text's words, in order."""
    return [to_stem(word) for word in split_words(text)]


def extract_content_stems(text: str) -> list[str]:
    """Return the stems of the words that aren't stop words, in order."""
    return [to_stem(word) for word in split_words(text) if word not in STOP_WORDS]


def list_synonyms(term: str) -> Iterable[str]:
    return SYNONYM_STEMS.get(term, ())


SYNONYM_STEMS = {
    to_stem(word): tuple(to_stem(synonym) for synonym in also) for word, also in SYNONYMS.items()
}
WEAK_STEMS = frozenset(to_stem(word) for word in WEAK_WORDS)
CHANGING_STEMS = frozenset(to_stem(word) for word in CHANGING_WORDS)
HARMFUL_STEMS = frozenset(to_stem(word) for word in HARMFUL_WORDS)


REGIONS = split_word_list("Africa America Asia Atlantic Australia Europe Indian Pacific")
# Zone names that are more often ordinary words than places.
EXCLUDED_PLACES = split_word_list(
    "act center christmas easter jersey lhi midway north nsw reunion south wake west"
)
COUNTRIES = split_word_list(
    "Cuba Egypt Iceland Iran Israel Jamaica Japan Libya Poland Portugal Singapore Turkey"
)
# Cities without a zone of their own name, by zone.
CITIES_BY_ZONE = {
    "America/Chicago": "austin dallas houston",
    "America/Los_Angeles": "san_francisco san_diego seattle portland las_vegas california",
    "America/New_York": "atlanta boston miami philadelphia washington nyc washington_dc",
    "America/Sao_Paulo": "brasilia rio_de_janeiro são_paulo",
    "America/Toronto": "ottawa",
    "Asia/Dubai": "abu_dhabi",
    "Asia/Ho_Chi_Minh": "hanoi ho_chi_minh_city",
    "Asia/Jerusalem": "tel_aviv",
    "Asia/Kolkata": "bangalore bengaluru chennai delhi hyderabad india mumbai new_delhi pune",
    "Asia/Seoul": "busan korea south_korea",
    "Asia/Shanghai": "beijing china guangzhou shenzhen",
    "Asia/Tokyo": "kyoto osaka",
    "Europe/Berlin": "cologne düsseldorf frankfurt germany hamburg munich münchen stuttgart",
    "Europe/Lisbon": "porto",
    "Europe/London": "cambridge edinburgh england manchester oxford uk",
    "Europe/Madrid": "barcelona spain valencia",
    "Europe/Moscow": "saint_petersburg st_petersburg",
    "Europe/Paris": "france lyon marseille",
    "Europe/Rome": "florence italy milan naples turin",
    "Europe/Zurich": "basel bern geneva switzerland zürich",
}
ABBREVIATIONS = {
    "UTC": "UTC", "GMT": "GMT", "CET": "CET", "CEST": "CET", "EET": "EET", "WET": "WET",
    "BST": "Europe/London", "EST": "America/New_York", "EDT": "America/New_York",
    "CST": "America/Chicago", "CDT": "America/Chicago", "MST": "America/Denver",
    "MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
    "JST": "Asia/Tokyo", "KST": "Asia/Seoul", "IST": "Asia/Kolkata", "SGT": "Asia/Singapore",
    "AEST": "Australia/Sydney", "AEDT": "Australia/Sydney", "NZST": "Pacific/Auckland",
}  # fmt: skip
BEFORE_PLACE = re.compile(r"\b(?:in|at|for|from|to|of|near|and|or|vs|versus|time)\s+$", re.I)
PLACE_WORD = re.compile(r"(?<![\w/.-])[^\W\d_]+(?![\w/])")
MAX_PLACE_WORDS = 4
ZONE_NAME = re.compile(
    r"(?<![\w/.:~-])[A-Za-z]+(?:/[A-Za-z0-9+-]+(?:_[A-Za-z0-9+-]+)*){1,2}(?![\w/])"
)


def extract_time_zones(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, zone) of each time zone named in a text, in order."""
    zones = [
        (match.start(), match.end(), _build_zone_names()[match.group().lower()])
        for match in ZONE_NAME.finditer(text)
        if match.group().lower() in _build_zone_names()
    ]
    for start, end, zone in _iterate_places(text):
        is_inside = any(zone_match[0] <= start < zone_match[1] for zone_match in zones)
        if not is_inside and (text[start].isupper() or BEFORE_PLACE.search(text[:start][-20:])):
            zones.append((start, end, zone))
    return sorted(zones)


@compute_once
def _build_zone_names() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones() if "/" in name}


@compute_once
def _build_places() -> dict[str, str]:
    places: dict[str, str] = {}
    for name in sorted(available_timezones(), key=lambda name: (name.count("/"), name)):
        region, _, city = name.partition("/")
        place = _normalize_place(city.rpartition("/")[2])
        if region in REGIONS and place not in EXCLUDED_PLACES:
            places.setdefault(place, name)
        elif region in COUNTRIES and not city:
            places.setdefault(_normalize_place(name), name)
    for zone, cities in CITIES_BY_ZONE.items():
        places |= {_normalize_place(city): zone for city in cities.split()}
    return places


def _iterate_places(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each place with its longest name: `New York`, not `York`."""
    spans = [match.span() for match in PLACE_WORD.finditer(text)]
    covered_until = 0
    for first, (start, _) in enumerate(spans):
        if start < covered_until:
            continue
        for _, end in reversed(spans[first : first + MAX_PLACE_WORDS]):
            name = text[start:end]
            zone = ABBREVIATIONS.get(name) or _build_places().get(_normalize_place(name))
            if zone is not None:
                covered_until = end
                yield start, end, zone
                break


def _normalize_place(place: str) -> str:
    return re.sub(r"[ _-]+", " ", place).lower()


STRONG_KINDS = split_word_list("url email uuid datetime date time timezone path revision")
MAX_TEXT = 4_096  # characters that are analyzed; longer messages contain pasted text

QUOTED = re.compile(r'"([^"\n]*)"|“([^”\n]*)”|«([^»\n]*)»|`([^`\n]+)`|(?<!\w)\'([^\'\n]+)\'(?!\w)')
EXTENSIONS = (
    "bat c cc cfg conf cpp cs css csv docx env go h hpp htm html ini ipynb java jpeg jpg js json "
    "jsonl jsx kt lock log lua md mjs pdf php png pptx py rb rs rst scala sh sql svg swift tex "
    "toml ts tsv tsx txt vue wav xlsx xml yaml yml zip"
).replace(" ", "|")
PATTERNS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("url", re.compile(r"\b(?:https?|ftp|wss?)://[^\s<>\"'`]+[^\s<>\"'`.,;:!?)\]}]")),
    ("email", re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")),
    ("uuid", re.compile(r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b")),
    (
        "datetime",
        re.compile(
            r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(?:Z|[+-]\d\d:?\d\d)?(?![\w:])"
        ),
    ),
    ("date", re.compile(r"\b\d{4}-\d\d-\d\d\b")),
    (
        "time",
        re.compile(
            r"(?<![\w:/.-])(?:[01]?\d|2[0-3]):[0-5]\d(?::[0-5]\d)?(?:\s*[ap]\.?m\b\.?)?(?![\w:])"
            r"|(?<![\w:/.-])(?:1[0-2]|0?[1-9])\s*[ap]\.?m\b\.?"
            r"|\b(?:noon|midnight)\b",
            re.I,
        ),
    ),
    ("timezone", re.compile(r"(?!)")),  # found by name: see `_iterate_typed_values`
    (
        "path",
        re.compile(
            r"(?<![\w:/<])(?:~|\.{1,2})?/[^\s\"'`,;<>|?*]*[^\s\"'`,;:<>|?*.!)\]]"
            r"|\b[A-Za-z]:\\[^\s\"'`,;<>|?*]*"
            rf"|(?<![\w/@.-])[\w-]+(?:[/.][\w-]+)*\.(?:{EXTENSIONS})\b(?!\.?\w)"
        ),
    ),
    (
        "revision",
        re.compile(r"\bHEAD(?:[~^]\d*)*|\b(?=[a-f]*\d)(?=\d*[a-f])[0-9a-f]{7,40}\b"),
    ),
    (
        "number",
        re.compile(
            r"(?<![\w.:/-])-?\d{1,18}(?:,\d{3}){0,4}(?:\.\d{1,18})?(?:[eE][+-]?\d{1,3})?(?![\d:/]|\.\d)"
        ),
    ),
)
NUMBER_NAMES = "zero one two three four five six seven eight nine ten eleven twelve"
NUMBER_WORDS = {name: number for number, name in enumerate(NUMBER_NAMES.split(" "))} | {
    "twenty": 20,
    "thirty": 30,
    "fifty": 50,
    "hundred": 100,
}
NUMBER_WORD = re.compile(rf"\b(?:{'|'.join(NUMBER_WORDS)})\b", re.I)


@dataclass(frozen=True)
class ExtractedValue:
    """A value extracted from a text, in the form of an argument."""

    kind: str
    value: Any
    start: int
    end: int

    def overlaps(self, start: int, end: int) -> bool:
        """Tell whether it overlaps a span of the text."""
        return self.start < end and start < self.end


@lru_cache(maxsize=128)
def extract_values(text: str) -> tuple[ExtractedValue, ...]:
    """Return all values in a text, by position; quoted texts overlap the values in them."""
    text = text[:MAX_TEXT]
    typed_values: list[ExtractedValue] = []
    for candidate in _iterate_typed_values(text):
        if not any(earlier.overlaps(candidate.start, candidate.end) for earlier in typed_values):
            typed_values.append(candidate)
    for match in NUMBER_WORD.finditer(text):
        if not any(earlier.overlaps(match.start(), match.end()) for earlier in typed_values):
            value = NUMBER_WORDS[match.group().lower()]
            typed_values.append(ExtractedValue("number word", value, match.start(), match.end()))
    quoted = [
        ExtractedValue(
            "quoted", next(group for group in match.groups() if group is not None), *match.span()
        )
        for match in QUOTED.finditer(text)
    ]
    return tuple(sorted([*typed_values, *quoted], key=lambda value: (value.start, -value.end)))


def _iterate_typed_values(text: str) -> Iterator[ExtractedValue]:
    for kind, pattern in PATTERNS:
        if kind == "timezone":
            for start, end, zone in extract_time_zones(text):
                yield ExtractedValue(kind, zone, start, end)
            continue
        parse_value = VALUE_PARSERS.get(kind, str)
        for match in pattern.finditer(text):
            yield ExtractedValue(kind, parse_value(match.group()), *match.span())


def _parse_time(text: str) -> str:
    """Return a time of day as HH:MM, or HH:MM:SS with seconds."""
    text = text.lower().replace(".", "").strip()
    if text in ("noon", "midnight"):
        return "12:00" if text == "noon" else "00:00"
    meridiem = text[-2:] if text.endswith(("am", "pm")) else ""
    hour, *remainder = text.removesuffix(meridiem).strip().split(":")
    hour_number = int(hour)
    if meridiem and hour_number <= 12:
        hour_number = hour_number % 12 + (12 if meridiem == "pm" else 0)
    return ":".join([f"{hour_number:02d}", *(remainder or ["00"])])


def _parse_number(text: str) -> int | float:
    text = text.replace(",", "")
    return float(text) if re.search(r"[.eE]", text) else int(text)


VALUE_PARSERS: dict[str, Callable[[str], Any]] = {"time": _parse_time, "number": _parse_number}
