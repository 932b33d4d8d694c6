"""Parse the forms of a page: their controls and the values that a browser would submit.

Parsing the HTML of our own pages covers every form, however it is built.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from html import unescape
from typing import Any
from urllib.parse import urlsplit

from bonobot.core.text.canonical_json import compute_digest, to_canonical_json

VERSION_FIELD = "_version"
# Hidden inputs that differ from page to page.
_IGNORED_INPUTS = frozenset({"csrfmiddlewaretoken", VERSION_FIELD})
_BUTTONS = frozenset({"submit", "button", "reset", "image", "file"})
_CHECKABLE_TYPES = frozenset({"checkbox", "radio"})
_ATTRIBUTES = r"""(?:[^>"']|"[^"]*"|'[^']*')*"""
_CONTROL_KINDS = {
    "password": "secret",
    "textarea": "lines",
    "select": "choice",
    "radio": "radio",
} | {"checkbox": "choice"}
# Longer texts, or texts with longer lines, are prose and compared as a whole.
MAX_LINES, MAX_LINE_LENGTH = 200, 600
_FORM = re.compile(rf"<form\b({_ATTRIBUTES})>(.*?)</form>", re.I | re.S)
_TAG = re.compile(rf"<(/?)(input|select|option|textarea|fieldset|label)\b({_ATTRIBUTES})>", re.I)
_ATTRIBUTE = re.compile(r"""([^\s=>"'/]+)(?:\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+)))?""")
_MARKUP = re.compile(r"<[^>]*>")


@dataclass
class Control:
    """A named control of a form; `values` are those of all inputs with this name.

    Kinds: `text`, `secret`, `choice` and `radio` (one of several), `set` (any of several), `lines`
    (a text of several lines).
    """

    kind: str
    label: str = ""
    values: list[str] = field(default_factory=list)
    input_count: int = 0

    def list_elements(self, values: list[str]) -> list[str]:
        """Return the elements that can be merged one by one: selected values, or lines."""
        if self.kind == "set":
            return values
        lines = values[0].split("\n") if self.kind == "lines" and len(values) == 1 else []
        is_list = len(lines) <= MAX_LINES and all(len(line) <= MAX_LINE_LENGTH for line in lines)
        return [line for line in lines if line.strip()] if is_list else []


@dataclass
class Form:
    """A form that posts to its own page; hidden inputs are inserted at `insert_at`."""

    insert_at: int
    key: str
    controls: dict[str, Control]

    def build_parts(self) -> dict[str, Any]:
        """Return the parts that the form's version covers: values and elements by name."""
        parts: dict[str, Any] = {name: control.values for name, control in self.controls.items()}
        for name, control in self.controls.items():
            parts |= {
                build_element_key(name, element): True
                for element in control.list_elements(control.values)
            }
        return parts


def build_element_key(name: str, element: str) -> str:
    """Return the name of the version part for an element of a control."""
    return f"{name}\n{element}"


def parse_forms(html: str, path: str) -> list[Form]:
    """Return the forms of a page that post to `path`.

    A fragment without a form element counts as one: it is inserted into another form.
    """
    if "<html" not in html[:1000] and "<form" not in html:
        first_tag = _TAG.search(html)
        forms = [_build_form(html, first_tag.start())] if first_tag else []
        return [form for form in forms if form.controls]
    forms = []
    counts_by_key: dict[str, int] = {}
    for match in _FORM.finditer(html):
        attributes = _parse_attributes(match[1])
        if not _is_form_of_path(attributes, path):
            continue
        form = _build_form(match[2], match.start(2))
        if "data-versioned" in attributes:
            form.key = ""  # its hidden inputs are compared when it is posted
        if form.controls:
            counts_by_key[form.key] = number = counts_by_key.get(form.key, -1) + 1
            form.key += f".{number}"
            forms.append(form)
    return forms


def normalize_values(values: list[str]) -> list[str]:
    """Return values with normalized line ends, as browsers send their own."""
    return [value.replace("\r\n", "\n").replace("\r", "\n") for value in values]


def _is_form_of_path(attributes: Mapping[str, str], path: str) -> bool:
    action = urlsplit(attributes.get("action", "")).path
    return (
        attributes.get("method", "").lower() == "post"
        and action in ("", path)
        and ("data-unguarded" not in attributes or "data-versioned" in attributes)
        and attributes.get("id") != "changelist-form"
    )


def _build_form(html: str, insert_at: int) -> Form:
    hidden: list[tuple[str, str]] = []
    controls: dict[str, Control] = {}
    labels: dict[str, str] = {}
    names_by_id: dict[str, str] = {}
    for tag, attributes, content in _iterate_tags(html):
        name = attributes.get("name", "")
        kind = attributes.get("type", "text").lower() if tag == "input" else tag
        if tag == "label":
            labels.setdefault(attributes.get("for", ""), content)
        elif not name or "disabled" in attributes or kind in _BUTTONS:
            continue
        elif kind == "hidden":
            hidden.append((name, attributes.get("value", "")))
        else:
            _add_control(controls, name, kind, attributes, content)
            if "data-label" not in attributes:
                names_by_id.setdefault(attributes.get("id", ""), name)
    for identifier, text in labels.items():
        if identifier and identifier in names_by_id:
            controls[names_by_id[identifier]].label = (
                text or controls[names_by_id[identifier]].label
            )
    hidden_values = sorted(pair for pair in hidden if pair[0] not in _IGNORED_INPUTS)
    return Form(insert_at, compute_digest(to_canonical_json(hidden_values))[:12], controls)


def _add_control(
    controls: dict[str, Control], name: str, kind: str, attributes: Mapping[str, str], content: str
) -> None:
    control_kind = _CONTROL_KINDS.get(kind, "text")
    if kind == "select" and "multiple" in attributes:
        control_kind = "set"
    label = attributes.get("data-label") or attributes.get("aria-label", "")
    control = controls.setdefault(name, Control(control_kind, label))
    control.input_count += 1
    if kind == "checkbox" and control.input_count > 1:
        control.kind = "set"
    if kind == "select":
        control.values += [unescape(option) for option in content.split("\0") if option != "\1"]
    elif kind in _CHECKABLE_TYPES:
        if "checked" in attributes:
            control.values.append(attributes.get("value", "on"))
    else:
        value = content if kind == "textarea" else attributes.get("value", "")
        control.values += normalize_values([value])


def _iterate_tags(html: str) -> Iterator[tuple[str, dict[str, str], str]]:
    """Yield (tag, attributes, content) of the enabled controls and labels of a form.

    The content of a select is its selected values joined with NUL.
    """
    disabled_depth = 0
    position = 0
    while match := _TAG.search(html, position):
        position = match.end()
        is_closing, tag, attributes = match[1], match[2].lower(), _parse_attributes(match[3])
        if tag == "fieldset":
            if is_closing:
                disabled_depth = max(0, disabled_depth - 1)
            elif disabled_depth or "disabled" in attributes:
                disabled_depth += 1
            continue
        if is_closing or tag == "option":
            continue
        content = ""
        if tag in ("textarea", "select", "label"):
            end = html.find(f"</{tag}", position)
            end = len(html) if end < 0 else end
            inner, position = html[position:end], position if tag == "label" else end
            content = _get_tag_content(tag, inner, attributes)
        if not disabled_depth or tag == "label":
            yield tag, attributes, content


def _get_tag_content(tag: str, inner: str, attributes: Mapping[str, str]) -> str:
    if tag == "textarea":
        return unescape(inner.removeprefix("\r\n").removeprefix("\n"))
    if tag == "label":
        return " ".join(unescape(_MARKUP.sub(" ", inner)).split())
    options = [
        (_parse_attributes(match[3]), inner[match.end() :].partition("<")[0])
        for match in _TAG.finditer(inner)
        if match[2].lower() == "option" and not match[1]
    ]
    selected = [option for option in options if "selected" in option[0]]
    if not selected and "multiple" not in attributes:
        selected = [option for option in options if "disabled" not in option[0]][:1]
    values = [option.get("value", " ".join(text.split())) for option, text in selected]
    return "\0".join(values) if values else "\1"


def _parse_attributes(text: str) -> dict[str, str]:
    return {
        match[1].lower(): unescape(match[2] or match[3] or match[4] or "")
        for match in _ATTRIBUTE.finditer(text)
    }
