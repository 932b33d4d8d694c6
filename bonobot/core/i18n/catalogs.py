"""Message catalogs: read `.po` files and compile them into the `.mo` files that gettext reads.

Uses the standard library only, because the build of a wheel loads this file by its path.
"""

import ast
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

HEADER = (
    "Project-Id-Version: Bonobot\n"
    "MIME-Version: 1.0\n"
    "Content-Type: text/plain; charset=UTF-8\n"
    "Content-Transfer-Encoding: 8bit\n"
    "Plural-Forms: nplurals=2; plural=(n != 1);\n"
)
MO_MAGIC = 0x950412DE
_LINE = re.compile(r'(?:(msgid|msgid_plural|msgstr(?:\[\d\])?) )?(".*")')


class Message(NamedTuple):
    """A text, and its plural if it has one."""

    text: str
    plural: str = ""


Catalog = dict[Message, tuple[str, ...]]


def read_catalog(path: Path) -> Catalog:
    """Return the messages of a `.po` file; a missing translation is an empty text."""
    catalog: Catalog = {}
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        fields: dict[str, str] = {}
        field = ""
        for line in block.splitlines():
            if match := _LINE.fullmatch(line):
                field = match[1] or field
                fields[field] = fields.get(field, "") + ast.literal_eval(match[2])
        if fields.get("msgid"):
            translated = tuple(text for name, text in fields.items() if name.startswith("msgstr"))
            catalog[Message(fields["msgid"], fields.get("msgid_plural", ""))] = translated
    return catalog


def encode_catalog(catalog: Mapping[Message, tuple[str, ...]]) -> bytes:
    """Return a catalog in the binary format of GNU gettext, without a hash table."""
    pairs = [(b"", HEADER.encode())]
    for message, texts in catalog.items():
        key = f"{message.text}\0{message.plural}" if message.plural else message.text
        if all(texts):
            pairs.append((key.encode(), "\0".join(texts).encode()))
    pairs.sort()
    count, keys, values = len(pairs), b"", b""
    key_positions, value_positions = [], []
    for encoded_key, value in pairs:
        key_positions.append((len(encoded_key), len(keys)))
        value_positions.append((len(value), len(values)))
        keys += encoded_key + b"\0"
        values += value + b"\0"
    start = 28 + 16 * count
    tables = [(size, start + position) for size, position in key_positions]
    tables += [(size, start + len(keys) + position) for size, position in value_positions]
    head = struct.pack("<7I", MO_MAGIC, 0, count, 28, 28 + 8 * count, 0, start)
    return head + b"".join(struct.pack("<2I", *entry) for entry in tables) + keys + values


def compile_catalogs(folder: Path) -> list[Path]:
    """Compile the `.po` files in a folder that changed since; return the `.mo` files written."""
    written_files = []
    for source in sorted(folder.glob("*/LC_MESSAGES/*.po")):
        target = source.with_suffix(".mo")
        changed_ns = source.stat().st_mtime_ns
        if target.exists() and target.stat().st_mtime_ns == changed_ns:
            continue
        # Several processes may start at once: each replaces the file as a whole.
        unfinished = target.with_suffix(f".{os.getpid()}.mo")
        unfinished.write_bytes(encode_catalog(read_catalog(source)))
        os.utime(unfinished, ns=(changed_ns, changed_ns))
        unfinished.replace(target)
        written_files.append(target)
    return written_files
