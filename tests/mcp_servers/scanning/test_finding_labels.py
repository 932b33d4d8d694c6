from mcp_servers.templatetags.findings import finding_label, name_rules


def test_a_finding_has_a_label_of_words() -> None:
    assert finding_label("override_rules") == "overrides instructions"
    assert finding_label("encoded_base") == "encoded base"


def test_an_excerpt_names_rules_in_words_and_keeps_the_text() -> None:
    excerpt = "88 %: “as (The) admin” (claims_authority, encoded_base)"
    assert name_rules(excerpt) == "88 %: “as (The) admin” (claims authority, encoded base)"
