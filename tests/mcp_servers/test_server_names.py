"""Names of servers have stable slugs, and no two look alike."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bonobot.core.problems import Problem
from mcp_servers.server_names import check_name, find_collision, find_mixed_alphabets, slugify

SLUG = re.compile(r"[a-z0-9]([a-z0-9_-]*[a-z0-9])?")


@given(st.text(max_size=300))
def test_a_slug_is_stable_short_and_ascii(name: str) -> None:
    slug = slugify(name)
    assert slug == "" if not name.strip() else SLUG.fullmatch(slug)
    assert len(slug) <= 40
    assert slugify(slug) == slug


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("GitHub", "github"),
        ("aws-s3", "aws-s3"),
        ("my_server", "my_server"),
        ("Wetter Büro (Köln)", "wetter-buro-koln"),
        ("a  --  b", "a-b"),
        ("Straße", "strasse"),
        ("\uff27it\uff28ub", "github"),
    ],
)
def test_a_slug_resembles_the_name(name: str, slug: str) -> None:
    assert slugify(name) == slug


def test_a_name_without_ascii_letters_still_gets_its_own_slug() -> None:
    assert slugify("天気").startswith("server-")
    assert slugify("天気") != slugify("東京")


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("aws-s3", "aws_s3"),
        ("GitHub", "github"),
        ("github", "g1thub".replace("1", "i")),
        ("paypal", "paypa1"),
        ("modern", "rnodern"),
        ("coco", "\u0441\u043e\u0441\u043e"),
        ("github", "\uff47ithub"),
        ("Café", "cafe"),
    ],
)
def test_names_that_are_or_look_the_same_collide(name: str, other: str) -> None:
    assert find_collision(name, ["weather", other]) == other
    assert find_collision(other, ["weather", name]) == name


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("github", "gitlab"),
        ("aws-s3", "aws-s4"),
        ("погода", "дорога"),
        ("天気", "東京"),
        ("time", "times"),
        ("v1", "v2"),
    ],
)
def test_different_names_do_not_collide(name: str, other: str) -> None:
    assert find_collision(name, [other]) is None


def test_letters_of_two_alphabets_in_one_word_are_detected() -> None:
    assert find_mixed_alphabets("g\u0456thub") == ("Cyrillic", "Latin")
    assert find_mixed_alphabets("Погода weather") == ()
    assert find_mixed_alphabets("東京tower") == ()


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("", "missing_name"),
        ("   ", "missing_name"),
        ("x" * 256, "bad_name"),
        ("git\u200bhub", "bad_name"),
        ("git\nhub", "bad_name"),
        ("git\u202ehub", "bad_name"),
        ("g\u0456thub", "confusable_name"),
        ("Weather", "name_taken"),
    ],
)
def test_a_misleading_name_is_refused_with_a_remedy(name: str, code: str) -> None:
    with pytest.raises(Problem) as refusal:
        check_name(name, ["weather"])
    assert refusal.value.code == code
    assert refusal.value.field == "name"
    assert refusal.value.remedy


@pytest.mark.parametrize("name", ["Wetter", "دوربین‌های شهر", "天気", "моя погода", "team 👩‍💻"])
def test_names_in_other_languages_are_accepted(name: str) -> None:
    check_name(name, ["weather"])
