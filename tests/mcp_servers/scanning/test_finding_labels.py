from mcp_servers.templatetags.findings import finding_label


def test_a_finding_has_a_label_of_words() -> None:
    assert finding_label("override_rules") == "overrides instructions"
    assert finding_label("encoded_base") == "encoded base"
