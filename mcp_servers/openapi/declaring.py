"""Operations that a person declares by hand, without a document: read and checked: pure.

What comes out is the one form that is kept (`endpoint_config.declared`), exported and shown; a
document is composed from it (`composing`), and what stands behind that is as for every API.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from bonobot.lib.sayings import say
from mcp_servers.labels import Label
from mcp_servers.openapi.extensions import LONGEST_POINTER
from mcp_servers.openapi.inputs import Input, read_inputs, refused
from mcp_servers.openapi.translating import shown

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
WITHOUT_BODY = ("GET",)
BODIES = ("json", "form")
MOST_DECLARED = 100
LARGEST = 128 * 1024
LONGEST_NAME = 64
LONGEST_PATH = 400
LONGEST_DESCRIPTION = 4_000
MEMBERS = ("name", "description", "method", "path", "parameters", "body", "result", "labels")
FIELD = "endpoint_config.declared"
# As it stays when a document is read: names of tools are made of letters, digits, `-` and `_`.
_NAME = re.compile(r"[A-Za-z0-9-]+(?:_[A-Za-z0-9-]+)*")
_TEMPLATE = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, kw_only=True)
class Declared:
    """One operation as a person declares it; `labels` are None where they are suggested."""

    name: str
    description: str
    method: str
    path: str
    inputs: tuple[Input, ...] = ()
    body: str = "json"
    result: str = ""
    labels: tuple[str, ...] | None = None

    @property
    def key(self) -> str:
        """Return what it is known by among an API's operations."""
        return f"{self.method} {self.path}"

    def of(self, place: str) -> tuple[Input, ...]:
        """Return what goes to one place of the request."""
        return tuple(one for one in self.inputs if one.place == place)

    def as_dict(self) -> dict[str, Any]:
        """Return it as it is kept and read back."""
        found: dict[str, Any] = {
            "name": self.name,
            "description": self.description,
            "method": self.method,
            "path": self.path,
            "parameters": [one.as_dict() for one in self.inputs],
        }
        if self.of("body"):
            found["body"] = self.body
        if self.result:
            found["result"] = self.result
        return found | ({} if self.labels is None else {"labels": list(self.labels)})


def read_declared(raw: Any, base_url: str, field: str = FIELD) -> tuple[Declared, ...]:
    """Return the operations of a list; raises `Invalid`, which names the member."""
    if not isinstance(raw, list):
        raise refused(field, "`declared` must be a list of operations.", "bad_value")
    if not raw:
        raise refused(
            field, "No operation is declared.", "nothing_declared", "Declare at least one."
        )
    if len(raw) > MOST_DECLARED:
        raise refused(
            field,
            say(
                "{count:,} operations are more than can be declared at "
                "one server ({most_declared}).",
                count=len(raw),
                most_declared=MOST_DECLARED,
            ),
            "too_many",
            "Spread them over several servers.",
        )
    found = tuple(read_one(one, base_url, f"{field}[{i}]") for i, one in enumerate(raw))
    _apart(found, field)
    if len(json.dumps([one.as_dict() for one in found])) > LARGEST:
        raise refused(
            field,
            say("The operations are larger than {largest} KiB.", largest=LARGEST // 1024),
            "too_large",
            "Write shorter descriptions, or spread them over several servers.",
        )
    return found


def read_one(raw: Any, base_url: str, field: str = "") -> Declared:
    """Return one operation; raises `Invalid`."""
    if not isinstance(raw, Mapping):
        raise refused(field, "An operation must be an object.", "bad_value")
    known_members(raw, MEMBERS, field)
    where = _under(field)
    method = raw.get("method") or "GET"
    if not isinstance(method, str) or method.upper() not in METHODS:
        raise refused(
            where("method"),
            say("There is no method `{method}`.", method=shown(method)),
            "unknown_method",
            say("Use one of: {methods}.", methods=", ".join(METHODS)),
        )
    path = _path(raw.get("path"), base_url, where("path"))
    found = Declared(
        name=_name(raw.get("name"), where("name")),
        description=_description(raw.get("description"), where("description")),
        method=method.upper(),
        path=path,
        inputs=read_inputs(raw.get("parameters"), _TEMPLATE.findall(path), where("parameters")),
        result=_result(raw.get("result"), where("result")),
        labels=_labels(raw.get("labels"), where("labels")),
    )
    return _with_body(found, raw.get("body"), where)


def known_members(raw: Mapping[str, Any], known: tuple[str, ...], field: str) -> None:
    """Raise `Invalid` for a member that there isn't: no typo passes."""
    if strange := sorted(set(map(str, raw)) - set(known)):
        raise refused(
            _under(field)(strange[0][:64]),
            say("There is no member `{strange}` here.", strange=shown(strange[0])),
            "unknown_field",
            say("Members: {known}.", known=", ".join(known)),
        )


def _with_body(found: Declared, kind: Any, where: Any) -> Declared:
    if kind not in (None, "", *BODIES):
        raise refused(
            where("body"),
            say("There is no body `{kind}`.", kind=shown(kind)),
            "unknown_body",
            say("Use one of: {bodies}.", bodies=", ".join(BODIES)),
        )
    if found.of("body") and found.method in WITHOUT_BODY:
        raise refused(
            where("method"),
            say(
                "{method} is sent without a body, and fields of one are declared.",
                method=found.method,
            ),
            "body_not_sent",
            "Put them into the query, or choose another method.",
        )
    return replace(found, body=kind or "json")


def _apart(found: tuple[Declared, ...], field: str) -> None:
    """Refuse what couldn't be told apart: by name, or by method and path."""
    names: set[str] = set()
    keys: set[str] = set()
    for index, one in enumerate(found):
        spot = f"{field}[{index}]"
        if one.name.lower() in names:
            raise refused(
                f"{spot}.name",
                say("There is an operation `{name}` already.", name=one.name),
                "duplicate_name",
                "Choose another name; upper and lower case count as the same.",
            )
        if one.key in keys:
            raise refused(
                f"{spot}.path",
                say("`{one_key}` is declared twice.", one_key=one.key),
                "duplicate_operation",
                "Keep one of them: method and path tell operations apart.",
            )
        names.add(one.name.lower())
        keys.add(one.key)


def _name(said: Any, field: str) -> str:
    name = said.strip() if isinstance(said, str) else ""
    if not name:
        raise refused(
            field, "The operation has no name.", "missing_value", "Such as `get_order`: the tool's."
        )
    if len(name) > LONGEST_NAME or not _NAME.fullmatch(name):
        raise refused(
            field,
            say("`{name}` can't be a tool's name.", name=shown(name)),
            "bad_name",
            say(
                "Use letters, digits, `-` and single `_` in between, at most {longest_name}.",
                longest_name=LONGEST_NAME,
            ),
        )
    return name


def _description(said: Any, field: str) -> str:
    text = said.strip() if isinstance(said, str) else ""
    if not text:
        raise refused(
            field,
            "The operation has no description.",
            "missing_value",
            "Say what it does and when to use it: a model chooses by that.",
        )
    if len(text) > LONGEST_DESCRIPTION:
        raise refused(
            field,
            say(
                "The description is longer than {longest_description:,} characters.",
                longest_description=LONGEST_DESCRIPTION,
            ),
            "too_large",
            "Say it in fewer words.",
        )
    return text


def _path(said: Any, base_url: str, field: str) -> str:
    """Return the path below the base address; a whole address below it is one, too."""
    text = said.strip() if isinstance(said, str) else ""
    if not text:
        raise refused(field, "The operation has no path.", "missing_value", "Such as /orders/{id}.")
    if re.match(r"(?:[A-Za-z{][^/?#]*:)?//", text) or "://" in text.partition("/")[0]:
        text = _below(text, base_url, field)
    if "?" in text or "#" in text:
        raise refused(
            field,
            "A path ends before `?` and `#`.",
            "bad_path",
            "Declare what stands behind `?` as parameters in the query.",
        )
    path = text if text.startswith("/") else f"/{text}"
    if len(path) > LONGEST_PATH or not path.isprintable():
        raise refused(
            field,
            "The path is too long, or has characters that can't be seen.",
            "bad_path",
            say(
                "At most {longest_path} characters, such as /orders/{{id}}.",
                longest_path=LONGEST_PATH,
            ),
        )
    return path


def _below(text: str, base_url: str, field: str) -> str:
    bare = base_url.partition("?")[0].rstrip("/")
    host = text.partition("//")[2].partition("/")[0]
    if "{" in host or "{" in text.partition("//")[0]:
        raise refused(
            field,
            "A parameter can't say which host is asked.",
            "host_is_parameter",
            "Write the host; APIs at several hosts are servers of their own.",
        )
    if text != bare and not text.startswith((f"{bare}/", f"{bare}?", f"{bare}#")):
        raise refused(
            field,
            say("The operation is at another address than its server ({bare}).", bare=bare),
            "other_address",
            "Add it as a server by itself: a credential is for one place only.",
        )
    return text[len(bare) :] or "/"


def _result(said: Any, field: str) -> str:
    """Return a JSON pointer; `data.items` is written for `/data/items`, too."""
    if said in (None, ""):
        return ""
    text = said.strip() if isinstance(said, str) else ""
    if text and not text.startswith("/"):
        text = "/" + text.replace(".", "/")
    if len(text) < 2 or len(text) > LONGEST_POINTER or not text.isprintable() or "//" in text:
        raise refused(
            field,
            say("`{said}` names no part of an answer.", said=shown(said)),
            "bad_result",
            "Write the members on the way to it: data.items (or /data/items).",
        )
    return text


def _labels(said: Any, field: str) -> tuple[str, ...] | None:
    if said is None:
        return None
    if not isinstance(said, list):
        raise refused(field, "`labels` must be a list.", "bad_value")
    found = {str(one).replace("-", "_") for one in said}
    if unknown := sorted(found - {*Label}):
        raise refused(
            field,
            say("There is no label `{unknown}`.", unknown=shown(unknown[0])),
            "unknown_label",
            say("The labels are {label}.", label=", ".join(Label)),
        )
    return tuple(label.value for label in Label if label in found)


def _under(field: str) -> Any:
    return lambda name: f"{field}.{name}" if field else name
