"""The texts that the scanner's classifier learns from and is measured with.

Attacks and honest texts that sound like them come from grammars (`scanning_corpus/*.toml`): `[a|b]`
is a choice, `{slot}` one of a slot. Files named `written_*` have families of their own and the
slots of the file that they extend; `handwritten_*` and `varied_*` have single texts by style, and
`paired_*` complete short definitions and results that speak of the same things for both purposes,
`unlearned_*` such that only measure, as do the complete definitions and results of `oblique_*`,
and the texts of `first_*`, `second_*` and `third_*`.
Ordinary definitions are those of public servers, each row with its source and licence
(`tools.jsonl.gz`), beside those of `azure_tools.json.gz`; `passages.jsonl.gz` has paragraphs of the
descriptions of public packages, `guides.jsonl.gz` those of a copy of Bonobot's documentation.
Nothing of it is what the scanner is judged on elsewhere.
"""

import gzip
import json
import random
import re
import tomllib
import zlib
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

# Public servers that send what the user wrote to their authors: neither attacks nor ordinary, so
# nothing is learned from them and they count in no figure.
COLLECTORS = frozenset({"pypi:ableton-mcp"})
# The short definitions are left out by these groups, as others are by their server.
SHORT_GROUPS = 8
# Begins the names of families whose texts were written one by one.
BY_HAND = "hand:"
# Those of `varied_*`.
VARIED = "varied:"
# Those of `paired_*`.
PAIRED = "paired:"
# How many times as many definitions a family of a grammar has as a text written by hand.
DEFINITION_REPEATS = 25
FOLDER = Path(__file__).with_name("scanning_corpus")
_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_SLOT = re.compile(r"\{(\w+)\}")


class Sample(NamedTuple):
    """A definition, the names of its server's tools, its family or server, and its attack."""

    payload: dict[str, Any]
    own: frozenset[str]
    group: str
    body: str = ""


class Grammar:
    """Sentences from one file, the same for the same seed."""

    def __init__(self, name: str, seed: int) -> None:
        data = _read_toml(name)
        self.slots: dict[str, list[str]] = {key: list(text) for key, text in data["slots"].items()}
        self.families: dict[str, list[str]] = (
            data["families"]
            | _read_toml(f"written_{name}").get("families", {})
            | read_handwritten(f"handwritten_{name}")
            | read_handwritten(f"varied_{name}", VARIED)
        )
        self.chance = random.Random(seed)  # noqa: S311 - texts, no secrets

    def build_sentence(self, family: str) -> str:
        """Return one sentence of a family."""
        return self.fill_pattern(self.chance.choice(self.families[family]))

    def fill_pattern(self, text: str) -> str:
        """Return a pattern with its choices made and its slots filled."""
        while True:
            if match := _CHOICE.search(text):
                inner = match[1]
                chosen = (
                    self.chance.choice(inner.split("|")) if "|" in inner else f"\x02{inner}\x03"
                )
            elif match := _SLOT.search(text):
                chosen = self.chance.choice(self.slots[match[1]])
            else:
                break
            text = text[: match.start()] + chosen + text[match.end() :]
        return " ".join(text.replace("\x02", "[").replace("\x03", "]").split())


@cache
def _read_toml(name: str) -> dict[str, Any]:
    path = FOLDER / f"{name}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def read_handwritten(file_name: str, prefix: str = BY_HAND) -> dict[str, list[str]]:
    """Return the families of texts that were written one by one, by style; none without a file."""
    families: dict[str, list[str]] = {}
    for line in _read_lines(file_name):
        if line.startswith("== "):
            texts = families.setdefault(f"{prefix}{line.split()[1]}", [])
        else:
            texts.append(line.replace("\\n", " "))
    return families


@cache
def _read_lines(file_name: str) -> list[str]:
    path = FOLDER / f"{file_name}.txt"
    if not path.exists():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#: ")]


def read_unlearned(name: str, seed: int) -> list[tuple[str, Sample]]:
    """Return the style and the definition of each text that only measures."""
    grammar = Grammar(name, seed)
    own = frozenset(grammar.slots["tool"])
    return [
        (
            style,
            Sample({"name": "helper_tool", "description": grammar.fill_pattern(text)}, own, style),
        )
        for style, texts in read_handwritten(f"unlearned_{name}").items()
        for text in texts
    ]


def read_oblique(name: str) -> list[dict[str, Any]]:
    """Return the rows of an `oblique_*`: `style`, and a `definition` or a result's `text`."""
    data = _read_toml(f"oblique_{name}")
    rows: list[dict[str, Any]] = data.get("definitions") or data["results"]
    return rows


def read_measured(set_name: str, name: str) -> list[tuple[str, Sample]]:
    """Return the style and the definition of each text of a set (`first`, `second`, `third`).

    A definition without named tools has those of public servers as neighbors, the same each time.
    """
    public = sorted({str(row["name"]) for row in _read_rows("tools")})
    chance = random.Random(f"{set_name}_{name}")  # noqa: S311 - texts, no secrets
    samples = []
    for style, texts in read_handwritten(f"{set_name}_{name}", "").items():
        for text in texts:
            rest, _at, tools = text.partition(" @ ")
            payload = _build_written_definition(rest)
            drawn = [] if tools else chance.sample(public, 8)
            own = frozenset(tools.split(", ") if tools else drawn) | {payload["name"]}
            samples.append((style, Sample(payload, own, style)))
    return samples


def read_paired(name: str, prefix: str = "") -> list[Sample]:
    """Return the complete definitions of a `paired_*`, each in the family of its style."""
    return [
        Sample(_build_written_definition(text), frozenset(), f"{prefix}{style}")
        for style, texts in read_handwritten(f"paired_{name}", PAIRED).items()
        for text in texts
    ]


def _build_written_definition(text: str) -> dict[str, Any]:
    tool_name, description, *fields = text.split(" | ")
    parts = (part.partition(": ") for part in "".join(fields).split(" ; ") if part)
    properties = {
        name.strip(): {"type": "string", "description": description}
        for name, _colon, description in parts
    }
    schema = {"type": "object", "properties": properties}
    return {"name": tool_name, "description": description, "inputSchema": schema}


def count_samples(texts: list[str], family: str, each: int, repeats: int) -> int:
    """Return how many samples of a family are made; those by hand count by their texts.

    A family of a grammar has `repeats` times as many samples as a text written by hand.
    """
    is_single = family.startswith((BY_HAND, VARIED))
    return len(texts) * max(each // repeats, 1) if is_single else each


def is_varied(group: str) -> bool:
    """Tell whether a family's texts are those of `varied_*`."""
    return group.removeprefix("honest:").startswith(VARIED)


def is_single(group: str) -> bool:
    """Tell whether a family's texts are those of `varied_*` or `paired_*`."""
    return is_varied(group) or is_paired(group)


def is_paired(group: str) -> bool:
    """Tell whether a family's texts are those of `paired_*`."""
    return group.removeprefix("honest:").startswith(PAIRED)


def get_kin(name: str, family: str) -> str:
    """Return what the attacks of a family want; those of one kin are left out together."""
    if family.startswith(PAIRED):
        return family
    for prefix, file_name in ((BY_HAND, f"handwritten_{name}"), (VARIED, f"varied_{name}")):
        if family.startswith(prefix):
            heads = (line.split() for line in _read_lines(file_name) if line.startswith("== "))
            return next(kin for _, style, kin in heads if f"{prefix}{style}" == family)
    kin: str = _read_toml(f"written_{name}")["kin"][family]
    return kin


def build_payload(row: dict[str, Any]) -> dict[str, Any]:
    """Return a stored row as a definition; `params` are the descriptions of its parameters."""
    properties = {
        name: {"type": "string", **({"description": text} if text else {})}
        for name, text in row.get("params", {}).items()
    }
    schema = row.get("schema", {"type": "object", "properties": properties})
    return {"name": row["name"], "description": row["description"], "inputSchema": schema}


def read_ordinary() -> list[Sample]:
    """Return the definitions of public servers."""
    rows = [row for row in _read_rows("tools") if row["server"] not in COLLECTORS]
    results = [(row["server"], build_payload(row)) for row in rows]
    azure = gzip.decompress((FOLDER.parent / "azure_tools.json.gz").read_bytes())
    results += [("azure", tool) for tool in json.loads(azure)]
    own: dict[str, set[str]] = defaultdict(set)
    for server, payload in results:
        own[server].add(payload["name"])
    return [Sample(payload, frozenset(own[server]), server) for server, payload in results]


def read_passages() -> list[tuple[str, str]]:
    """Return paragraphs of the descriptions of public packages, each with its package."""
    return [(row["source"], text) for row in _read_rows("passages") for text in row["texts"]]


def read_guides() -> list[tuple[str, str]]:
    """Return paragraphs of a copy of Bonobot's documentation, each with its page.

    A copy, because changes to the documentation would change the weights.
    """
    return [(row["source"], text) for row in _read_rows("guides") for text in row["texts"]]


def _read_rows(name: str) -> list[dict[str, Any]]:
    raw = gzip.decompress((FOLDER / f"{name}.jsonl.gz").read_bytes())
    return [json.loads(line) for line in raw.decode().splitlines()]


def build_short_definitions(seed: int, count: int) -> list[Sample]:
    """Return short ordinary definitions: a verb and what it is done to."""
    grammar = Grammar("short", seed)
    samples: list[Sample] = []
    for number in range(count):
        verb = grammar.chance.choice(grammar.slots["verb"])
        noun = grammar.chance.choice(grammar.slots["noun"])
        grammar.slots |= {"v": [verb], "n": [noun.replace("_", " ")]}
        text = grammar.build_sentence(grammar.chance.choice(list(grammar.families)))
        name = f"{verb}_{noun}{grammar.chance.choice(grammar.slots['plural'])}"
        fields = grammar.chance.sample(grammar.slots["field"], grammar.chance.randint(0, 3))
        row = {"name": name, "description": text, "params": dict.fromkeys(fields, "")}
        payload = build_payload(row)
        if grammar.chance.random() < (0.3 if text else 0.7):
            action = {"type": "string", "enum": grammar.chance.sample(grammar.slots["verb"], 3)}
            payload["inputSchema"]["properties"]["action"] = action
        if grammar.chance.random() < 0.5:
            _add_sdk_titles(payload)
        samples.append(Sample(payload, frozenset({name}), f"short:{number % SHORT_GROUPS}"))
    return samples


def _add_sdk_titles(payload: dict[str, Any]) -> None:
    """Add what the Python SDK derives from a function: titles and the schema of its result."""
    name, schema = payload["name"], payload["inputSchema"]
    schema["title"] = f"{name}Arguments"
    for field, declared in schema["properties"].items():
        declared["title"] = field.replace("_", " ").title()
    result = {"result": {"title": "Result", "type": "string"}}
    payload["outputSchema"] = {
        "type": "object",
        "properties": result,
        "required": ["result"],
        "title": f"{name}Output",
    }


def build_honest(seed: int, each: int) -> list[Sample]:
    """Return made-up honest definitions that sound like attacks."""
    samples: list[Sample] = []
    openings = Grammar("attacks", seed).slots["plain"]
    for family, texts in Grammar("honest", seed).families.items():
        grammar = Grammar("honest", compute_family_seed(seed, family))
        for _ in range(count_samples(texts, family, each, DEFINITION_REPEATS)):
            parts = [
                grammar.build_sentence(family) for _ in range(grammar.chance.choice((1, 1, 2)))
            ]
            if grammar.chance.random() < 0.4:
                # What attacks begin with is no sign of them.
                parts.insert(0, grammar.chance.choice(openings))
            name = grammar.chance.choice(grammar.slots["tool"])
            payload = {"name": name, "description": " ".join(parts)}
            samples.append(Sample(payload, frozenset(grammar.slots["tool"]), f"honest:{family}"))
    return samples


def build_attacks(seed: int, each: int, carriers: list[Sample]) -> list[Sample]:
    """Return poisoned definitions: an attack among the words of an honest definition."""
    samples: list[Sample] = []
    names = sorted({name for item in carriers for name in item.own if "_" in name.strip("_")})
    for family, texts in Grammar("attacks", seed).families.items():
        grammar = Grammar("attacks", compute_family_seed(seed, family))
        tools = grammar.slots["tool"]
        for _ in range(count_samples(texts, family, each, DEFINITION_REPEATS)):
            grammar.slots["tool"] = tools if grammar.chance.random() < 0.5 else names
            samples.append(_poison_definition(grammar, family, carriers, tools))
    return samples


def _poison_definition(
    grammar: Grammar, family: str, carriers: list[Sample], tools: list[str]
) -> Sample:
    chance = grammar.chance
    text = chance.choice(grammar.families[family]).replace("{plain} ", "")
    body = grammar.fill_pattern(text)
    before = chance.choice(grammar.slots["plain"])
    if chance.random() < 0.7:
        before = chance.choice(carriers).payload["description"][: chance.choice((0, 60, 120, 250))]
    after = ""
    if chance.random() < 0.3:
        after = chance.choice(carriers).payload["description"][: chance.choice((40, 150))]
    own = {name for name in grammar.slots["tool"] if name in body}
    own |= set(chance.sample(tools, 5))
    payload = {
        "name": chance.choice(tools),
        "description": " ".join(item for item in (before, body, after) if item),
    }
    return Sample(payload, frozenset(own), family, body)


def compute_family_seed(seed: int, family: str) -> int:
    """Return the seed of a family, so that a new one changes no other."""
    return seed * 100_003 + zlib.crc32(family.encode())
