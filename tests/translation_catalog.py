"""The texts of the product and their translations: found in the sources, kept as .po and .mo.

`python -m tests.translation_catalog` (`make messages`) brings the German file up to date: what is
new waits there with an empty translation, what is gone goes, and the .mo is compiled. It needs no
gettext tools, so that the test of it runs everywhere.
"""

import ast
import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from django.conf import settings
from django.utils.translation.template import templatize

from tests.architecture.sources import Source, product
from tests.audit_actions import actions, called
from tests.parts import ROOT
from tests.problem_texts import english, sentences

PRESETS = ROOT / "mcp_servers" / "presets" / "catalogue.json"
LOCALES = ROOT / "bonobot" / "locale"
GERMAN = LOCALES / "de" / "LC_MESSAGES" / "django.po"
# English texts for some of Django and of the theme, in the words of this product.
ENGLISH = LOCALES / "en" / "LC_MESSAGES" / "django.po"
SINGLE = frozenset({"_", "_t", "_lazy", "gettext", "gettext_lazy", "gettext_noop"})
PLURAL = frozenset({"_n", "ngettext", "ngettext_lazy"})
HEADER = (
    "Project-Id-Version: Bonobot\n"
    "MIME-Version: 1.0\n"
    "Content-Type: text/plain; charset=UTF-8\n"
    "Content-Transfer-Encoding: 8bit\n"
    "Plural-Forms: nplurals=2; plural=(n != 1);\n"
)
# Texts of the theme that its pages show here; it comes without German.
THEME = (
    "After you've created a user, you’ll be able to edit more user options.",
    "Apply Filters",
    "Cancel",
    "Change Password",
    "Clear all filters",
    "Collapse",
    "Dark",
    "Date from",
    "Date to",
    "Expand row",
    "Filters",
    "From",
    "General",
    "Go back",
    "Light",
    "More actions",
    "No results found",
    "Raw passwords are not stored, so there is no way to see this user’s password, but you can "
    'change the password using <a href="{}" class="text-primary-600 dark:text-primary-500">this '
    "form</a>.",
    "Reset filters",
    "Run",
    "Select action",
    "Select action to run",
    "Select all rows",
    "Select record",
    "Select value",
    "Set password: %s",
    "System",
    "To",
    "Toggle password visibility",
    "Type to search",
    "Update",
    "Value",
    "Welcome back to",
    "You have been successfully logged out from the administration",
)
_LITERAL = r"""(?:u?'(?:[^'\\]|\\.)*'|u?"(?:[^"\\]|\\.)*")"""
_CALL = re.compile(rf"(?<!\w)(n?gettext|_)\(\s*({_LITERAL})(?:\s*,\s*({_LITERAL}))?", re.DOTALL)
_LINE = re.compile(r'(?:(msgid|msgid_plural|msgstr(?:\[\d\])?) )?(".*")')


class Message(NamedTuple):
    """A text, and its plural where it has one."""

    text: str
    plural: str = ""


Catalogue = dict[Message, tuple[str, ...]]


@cache
def messages() -> frozenset[Message]:
    """Return every text of the screens; one that has a plural anywhere has it."""
    found = {Message(text) for text in THEME}
    sources = product()
    for source in sources:
        found.update(_in_python(source))
    found.update(_scheduled(sources))
    found.update(Message(called(code)) for code in actions(sources))
    found.update(_of_presets(json.loads(PRESETS.read_text(encoding="utf-8"))["presets"]))
    for path in (ROOT / "templates").rglob("*.html"):
        found.update(_in_template(path.read_text(encoding="utf-8")))
    found.update(Message(text) for text in sentences(sources))
    several = {one.text for one in found if one.plural}
    return frozenset(one for one in found if one.text and (one.plural or one.text not in several))


def _in_python(source: Source) -> Iterator[Message]:
    says = not english(source)
    for node in source.nodes:
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else node.func.attr
        texts = [one.value for one in node.args if isinstance(one, ast.Constant)]
        said = [one for one in texts if isinstance(one, str)]
        if (name in SINGLE or (says and _says(node))) and said:
            yield Message(said[0])
        elif name in PLURAL and len(said) > 1:
            yield Message(said[0], said[1])


def _scheduled(sources: Iterable[Source]) -> Iterator[Message]:
    """Yield what scheduled tasks say of themselves, as the page of schedules shows it."""
    where = ("bonobot.settings", "bonobot.settings.oauth_server")
    names = {one.target for source in sources if source.module in where for one in source.strings}
    for source in (one for one in sources if one.module.endswith(".tasks")):
        for node in source.tree.body:
            if isinstance(node, ast.FunctionDef) and f"{source.module}.{node.name}" in names:
                said = (ast.get_docstring(node) or "").partition("\n")[0]
                yield Message(said.partition(";")[0].rstrip("."))


def _of_presets(presets: Iterable[Mapping[str, Any]]) -> Iterator[Message]:
    """Yield what the shipped presets and their parameters say of themselves."""
    for preset in presets:
        yield Message(preset["description"])
        for one in preset["parameters"]:
            yield from (Message(one["label"]), Message(one["help"]))


def _says(call: ast.Call) -> bool:
    """Tell whether a call is of `format_message`, or makes one."""
    partial = ast.unparse(call.func) == "partial"
    made = partial and ast.unparse(call.args[0]) == "format_message"
    return made or (isinstance(call.func, ast.Name) and call.func.id == "format_message")


def _in_template(source: str) -> Iterator[Message]:
    for name, text, plural in _CALL.findall(templatize(source)):
        several = ast.literal_eval(plural) if plural and name == "ngettext" else ""
        yield Message(ast.literal_eval(text), several)


def read(path: Path = GERMAN) -> Catalogue:
    """Return what a .po file says; an empty translation is an empty text."""
    found: Catalogue = {}
    for block in path.read_text(encoding="utf-8").split("\n\n"):
        said: dict[str, str] = {}
        key = ""
        for line in block.splitlines():
            if match := _LINE.fullmatch(line):
                key = match[1] or key
                said[key] = said.get(key, "") + ast.literal_eval(match[2])
        if said.get("msgid"):
            translated = tuple(text for name, text in said.items() if name.startswith("msgstr"))
            found[Message(said["msgid"], said.get("msgid_plural", ""))] = translated
    return found


def written(catalogue: Mapping[Message, tuple[str, ...]]) -> str:
    """Return the text of a .po file."""
    blocks = ['msgid ""\nmsgstr ""\n' + "\n".join(_quoted(f"{x}\n") for x in HEADER.splitlines())]
    for one, texts in sorted(catalogue.items()):
        lines = [f"msgid {_quoted(one.text)}"]
        if one.plural:
            lines.append(f"msgid_plural {_quoted(one.plural)}")
            lines += [f"msgstr[{number}] {_quoted(text)}" for number, text in enumerate(texts)]
        else:
            lines.append(f"msgstr {_quoted(texts[0])}")
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks) + "\n"


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def compiled(catalogue: Mapping[Message, tuple[str, ...]]) -> bytes:
    """Return the .mo of a catalogue: the format of GNU gettext, without a hash table."""
    pairs = [(b"", HEADER.encode())]
    for one, texts in catalogue.items():
        key = f"{one.text}\0{one.plural}" if one.plural else one.text
        if all(texts):
            pairs.append((key.encode(), "\0".join(texts).encode()))
    pairs.sort()
    number, keys, values = len(pairs), b"", b""
    at_keys, at_values = [], []
    for key, value in pairs:
        at_keys.append((len(key), len(keys)))
        at_values.append((len(value), len(values)))
        keys += key + b"\0"
        values += value + b"\0"
    first = 28 + 16 * number
    tables = [(size, first + at) for size, at in at_keys]
    tables += [(size, first + len(keys) + at) for size, at in at_values]
    head = struct.pack("<7I", 0x950412DE, 0, number, 28, 28 + 8 * number, 0, first)
    return head + b"".join(struct.pack("<2I", *one) for one in tables) + keys + values


def update(path: Path = GERMAN) -> list[Message]:
    """Bring a catalogue up to date with the sources; return what isn't translated."""
    known = read(path) if path.exists() else {}
    found: Catalogue = {}
    for one in messages():
        blank = ("", "") if one.plural else ("",)
        found[one] = known.get(one, blank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(found), encoding="utf-8")
    path.with_suffix(".mo").write_bytes(compiled(found))
    return sorted(one for one, texts in found.items() if not all(texts))


if __name__ == "__main__":
    settings.configure()
    for one in update():
        print(f"not translated: {one.text!r}")  # noqa: T201  # what a command says
    ENGLISH.with_suffix(".mo").write_bytes(compiled(read(ENGLISH)))
