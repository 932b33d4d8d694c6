"""Places and abbreviations as IANA time zones: "Tokyo", "New York", "PST", "asia/tokyo"."""

import re
from collections.abc import Iterator
from functools import cache
from zoneinfo import available_timezones

from agents.llm.offline.words import listed

REGIONS = listed("Africa America Asia Atlantic Australia Europe Indian Pacific")
# Names of zones that are words in a sentence more often than places.
NOT_PLACES = listed(
    "act center christmas easter jersey lhi midway north nsw reunion south wake west"
)
COUNTRIES = listed(
    "Cuba Egypt Iceland Iran Israel Jamaica Japan Libya Poland Portugal Singapore Turkey"
)
# Cities that no zone is named after, by the zone that they keep.
CITIES = {
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
NAME = re.compile(r"(?<![\w/.:~-])[A-Za-z]+(?:/[A-Za-z0-9+-]+(?:_[A-Za-z0-9+-]+)*){1,2}(?![\w/])")


def zones_in(text: str) -> list[tuple[int, int, str]]:
    """Return (start, end, zone) of every zone that a text names, in order."""
    found = [
        (match.start(), match.end(), _names()[match.group().lower()])
        for match in NAME.finditer(text)
        if match.group().lower() in _names()
    ]
    for start, end, zone in _places_in(text):
        inside = any(other[0] <= start < other[1] for other in found)
        if not inside and (text[start].isupper() or BEFORE_PLACE.search(text[:start][-20:])):
            found.append((start, end, zone))
    return sorted(found)


@cache
def _names() -> dict[str, str]:
    return {name.lower(): name for name in available_timezones() if "/" in name}


@cache
def _places() -> dict[str, str]:
    places: dict[str, str] = {}
    for name in sorted(available_timezones(), key=lambda name: (name.count("/"), name)):
        region, _, city = name.partition("/")
        place = _key(city.rpartition("/")[2])
        if region in REGIONS and place not in NOT_PLACES:
            places.setdefault(place, name)
        elif region in COUNTRIES and not city:
            places.setdefault(_key(name), name)
    for zone, cities in CITIES.items():
        places |= {_key(city): zone for city in cities.split()}
    return places


def _places_in(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield each place by its longest name: `New York`, not `York`."""
    spans = [match.span() for match in PLACE_WORD.finditer(text)]
    done = 0
    for first, (start, _) in enumerate(spans):
        if start < done:
            continue
        for _, end in reversed(spans[first : first + MAX_PLACE_WORDS]):
            said = text[start:end]
            zone = ABBREVIATIONS.get(said) or _places().get(_key(said))
            if zone is not None:
                done = end
                yield start, end, zone
                break


def _key(place: str) -> str:
    return re.sub(r"[ _-]+", " ", place).lower()
