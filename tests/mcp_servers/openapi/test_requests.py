"""Requests: OpenAPI's parameter styles, and arguments that can't leave their place."""

import json
from email import message_from_bytes
from urllib.parse import parse_qsl, unquote, urlsplit

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import Problem
from mcp_servers.openapi.document import parse_document
from mcp_servers.openapi.operations import PLAN_META_KEY, iterate_operations
from mcp_servers.openapi.requests import prepare_request
from mcp_servers.schemas import InvalidArguments
from tests.mcp_servers.openapi.documents import parameter, text

BASE = "https://api.example.com/v1"
COLOR = {"string": "blue", "array": ["blue", "black"], "object": {"R": 100, "G": 200}}


def build_plan(operation, path="/x", method="post"):
    (built,) = iterate_operations(parse_document(text({path: {method: operation}})))
    assert built.tool, built.refusal_reason
    return built.tool["_meta"][PLAN_META_KEY]


def prepare_styled(location, style, explode, value):
    path = "/x/{color}" if location == "path" else "/x"
    more = {"style": style, "explode": explode}
    plan = build_plan({"parameters": [parameter("color", location, **more)]}, path)
    return prepare_request(plan, BASE, {"color": value})


@pytest.mark.parametrize(
    ("style", "explode", "kind", "expected"),
    [
        ("simple", False, "string", "blue"),
        ("simple", False, "array", "blue,black"),
        ("simple", False, "object", "R,100,G,200"),
        ("simple", True, "object", "R=100,G=200"),
        ("label", False, "string", ".blue"),
        ("label", False, "array", ".blue,black"),
        ("label", True, "array", ".blue.black"),
        ("label", True, "object", ".R=100.G=200"),
        ("matrix", False, "string", ";color=blue"),
        ("matrix", False, "array", ";color=blue,black"),
        ("matrix", True, "array", ";color=blue;color=black"),
        ("matrix", False, "object", ";color=R,100,G,200"),
        ("matrix", True, "object", ";R=100;G=200"),
    ],
)
def test_path_styles_are_serialized(style, explode, kind, expected):
    assert prepare_styled("path", style, explode, COLOR[kind]).url == f"{BASE}/x/{expected}"


@pytest.mark.parametrize(
    ("style", "explode", "kind", "expected"),
    [
        ("form", True, "string", "color=blue"),
        ("form", True, "array", "color=blue&color=black"),
        ("form", False, "array", "color=blue,black"),
        ("form", True, "object", "R=100&G=200"),
        ("form", False, "object", "color=R,100,G,200"),
        ("spaceDelimited", False, "array", "color=blue%20black"),
        ("pipeDelimited", False, "array", "color=blue%7Cblack"),
        ("deepObject", True, "object", "color%5BR%5D=100&color%5BG%5D=200"),
    ],
)
def test_query_styles_are_serialized(style, explode, kind, expected):
    assert prepare_styled("query", style, explode, COLOR[kind]).url == f"{BASE}/x?{expected}"


def test_nested_objects_use_the_deep_object_style():
    request = prepare_styled("query", "deepObject", True, {"a": {"b": [1, True]}, "c": None})
    assert parse_qsl(urlsplit(request.url).query) == [("color[a][b]", "1"), ("color[a][b]", "true")]


@pytest.mark.parametrize(
    ("explode", "kind", "expected"),
    [
        (False, "array", "blue,black"),
        (False, "object", "R,100,G,200"),
        (True, "object", "R=100,G=200"),
    ],
)
def test_header_styles_are_serialized(explode, kind, expected):
    assert prepare_styled("header", "simple", explode, COLOR[kind]).headers == (
        ("color", expected),
    )


def test_cookies_are_encoded():
    assert prepare_styled("cookie", "form", False, "a; b=c").cookies == (("color", "a%3B%20b%3Dc"),)


@pytest.mark.parametrize("value", ["a\r\nX-Evil: 1", "a\nb", "a\x00b", "é", "\x7f"])
def test_a_header_is_one_line_of_ascii(value):
    with pytest.raises(InvalidArguments):
        prepare_styled("header", "simple", False, value)


@pytest.mark.parametrize("value", [5.0, 5])
def test_integers_have_no_decimal_point(value):
    assert prepare_styled("path", "simple", False, value).url == f"{BASE}/x/5"


def test_missing_and_null_arguments_are_omitted():
    plan = build_plan({"parameters": [parameter("a", "query"), parameter("B", "header")]})
    assert prepare_request(plan, BASE, {"a": None}).url == f"{BASE}/x"


def test_a_parameter_with_content_is_json():
    declaration = {"name": "f", "in": "query", "content": {"application/json": {"schema": {}}}}
    request = prepare_request(build_plan({"parameters": [declaration]}), BASE, {"f": {"a": [1]}})
    assert dict(parse_qsl(urlsplit(request.url).query)) == {"f": '{"a":[1]}'}


def prepare_body(media, value, schema=None):
    plan = build_plan({"requestBody": {"content": {media: {"schema": schema or {}}}}})
    request = prepare_request(plan, BASE, {"body": value})
    return request.body, dict(request.headers).get("Content-Type", "")


def test_bodies_are_serialized_by_their_media_type():
    assert prepare_body("application/json", {"é": 1}) == ('{"é":1}'.encode(), "application/json")
    assert prepare_body("application/vnd.x+json", [1]) == (b"[1]", "application/vnd.x+json")
    assert prepare_body("*/*", None) == (b"null", "application/json")
    form, kind = prepare_body(
        "application/x-www-form-urlencoded", {"a": "b c", "l": [1, 2], "n": None}
    )
    assert (form, kind) == (b"a=b%20c&l=1&l=2", "application/x-www-form-urlencoded")
    assert prepare_body("text/csv", "a,b") == (b"a,b", "text/csv; charset=utf-8")


def test_a_multipart_form_is_parsed_back_unchanged():
    value = {"a\r\nX: y": 'q"\r\n', "o": {"k": 1}, "l": ["x", "y"]}
    body, kind = prepare_body("multipart/form-data", value)
    message = message_from_bytes(f"Content-Type: {kind}\r\n\r\n".encode() + body)
    parts = [
        (part.get_param("name", header="content-disposition"), part.get_payload())
        for part in message.get_payload()
    ]
    assert [name for name, _ in parts] == ["a%0D%0AX: y", "o", "l", "l"]
    assert json.loads(parts[1][1]) == {"k": 1}


def test_a_form_must_be_an_object():
    with pytest.raises(InvalidArguments):
        prepare_body("application/x-www-form-urlencoded", "a=b")


def test_the_configured_query_cant_be_overridden():
    plan = build_plan({"parameters": [parameter("o", "query", {"type": "object"})]})
    request = prepare_request(
        plan, f"{BASE}?v=2", {"o": {"key": "theirs", "a": "b"}}, query=[("key", "s&t")]
    )
    assert urlsplit(request.url).query == "v=2&a=b&key=s%26t"


def test_a_url_that_is_too_long_is_refused():
    with pytest.raises(InvalidArguments):
        prepare_styled("query", "form", True, "x" * 9000)


# -- Any arguments -------------------------------------------------------------------------------

WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NASTY = st.lists(
    st.sampled_from(
        ["..", ".", "/", "\\", "%2f", "%2e", "%252e", ";", "?", "#", "@", ":", "a", "\0", " "]
    ),
    max_size=6,
).map("".join)
SCALAR = st.one_of(WORDS, NASTY, st.integers(), st.booleans(), st.none())
VALUE = st.one_of(
    SCALAR,
    st.lists(SCALAR, max_size=3),
    st.dictionaries(st.one_of(WORDS, NASTY), SCALAR, max_size=3),
)
STYLE = st.sampled_from(["simple", "label", "matrix"])


@given(
    value=VALUE,
    style=STYLE,
    explode=st.booleans(),
    path=st.sampled_from(["/a/{x}/b", "/a/{x}", "/a/p{x}s/b", "/a/{x}.json"]),
)
def test_any_path_argument_stays_in_its_segment(value, style, explode, path):
    plan = build_plan({"parameters": [parameter("x", "path", style=style, explode=explode)]}, path)
    try:
        url = httpx2.URL(prepare_request(plan, BASE, {"x": value}).url)
    except InvalidArguments:
        return
    assert (url.scheme, url.host, url.query) == ("https", "api.example.com", b"")
    raw = url.raw_path.decode()
    assert raw.startswith("/v1/a/")
    assert raw.count("/") == f"/v1{path}".count("/")
    decoded = raw
    for _ in range(3):
        decoded = unquote(decoded)
        assert not {".", ".."} & set(decoded.replace("\\", "/").split("/"))


@given(
    value=VALUE,
    name=st.sampled_from(["a", "X-A"]),
    location=st.sampled_from(["query", "header", "cookie"]),
)
def test_any_argument_keeps_the_path_and_header_lines(value, name, location):
    plan = build_plan({"parameters": [parameter(name, location)]})
    argument = plan["parameters"][0]["argument"]
    try:
        request = prepare_request(plan, BASE, {argument: value})
    except Problem:
        return
    url = httpx2.URL(request.url)
    assert (url.host, url.path, url.fragment) == ("api.example.com", "/v1/x", "")
    for _, text_ in (*request.headers, *request.cookies):
        assert text_.isascii()
        assert text_.isprintable()
    assert all(";" not in text_ and " " not in text_ for _, text_ in request.cookies)
