"""The texts of the product and their translations: found in the sources, kept in .po files.

`python -m tests.translation_catalog` (`make messages`) updates the German file: new texts get an
empty translation, and those that are gone are removed. It needs no gettext tools, so that its test
runs everywhere.
"""

import ast
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.translation.template import templatize

from bonobot.core.i18n.catalogs import HEADER, Catalog, Message, compile_catalogs, read_catalog
from tests.architecture.sources import Source, product
from tests.audit_actions import actions, called
from tests.parts import ROOT
from tests.problem_texts import english, sentences

PRESETS = ROOT / "mcp_servers" / "presets" / "catalog.json"
LOCALES = ROOT / "bonobot" / "locale"
GERMAN = LOCALES / "de" / "LC_MESSAGES" / "django.po"
# English texts for some of Django and of the theme, in the words of this product.
ENGLISH = LOCALES / "en" / "LC_MESSAGES" / "django.po"
SINGLE = frozenset({"_", "_t", "_lazy", "gettext", "gettext_lazy", "gettext_noop"})
PLURAL = frozenset({"_n", "ngettext", "ngettext_lazy"})
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


def written(catalog: Mapping[Message, tuple[str, ...]]) -> str:
    """Return the text of a .po file."""
    blocks = ['msgid ""\nmsgstr ""\n' + "\n".join(_quoted(f"{x}\n") for x in HEADER.splitlines())]
    for one, texts in sorted(catalog.items()):
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


def update(path: Path = GERMAN) -> list[Message]:
    """Bring a catalog up to date with the sources; return what isn't translated."""
    known = read_catalog(path) if path.exists() else {}
    found: Catalog = {}
    for one in messages():
        blank = ("", "") if one.plural else ("",)
        found[one] = known.get(one, blank)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(written(found), encoding="utf-8")
    return sorted(one for one, texts in found.items() if not all(texts))


if __name__ == "__main__":
    settings.configure()
    for one in update():
        print(f"not translated: {one.text!r}")  # noqa: T201  # what a command says
    compile_catalogs(LOCALES)
