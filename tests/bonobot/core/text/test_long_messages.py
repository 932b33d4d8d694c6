"""Messages that quote the output of programs."""

from bonobot.core.text.long_messages import MAX_BRIEF, split_long_message

NPM_MESSAGE = (
    "`files` couldn't be installed: it exited with status 1: npm error code ERESOLVE npm error "
    "ERESOLVE unable to resolve dependency tree npm error While resolving: files@1.2.3 npm error "
    "Found: zod@3.25.0 npm error A complete log of this run can be found in: "
    "/home/server/.npm/_logs/2026-11-29T21_53_41_470Z-debug-0.log. Check the package name, the "
    "version, and the network connection. Then run `bonobot mcp install SERVER`, or try again in "
    "a minute."
)


def test_a_short_message_isnt_split() -> None:
    assert split_long_message("x" * MAX_BRIEF) is None


def test_the_remedy_stays_visible_when_npm_reports_many_lines() -> None:
    message = split_long_message(NPM_MESSAGE)
    assert message is not None
    assert message.beginning.startswith("`files` couldn't be installed: it exited with status 1")
    assert message.beginning.endswith("…")
    assert message.remedy.startswith("Check the package name")
    assert message.remedy.endswith("in a minute.")
    assert message.lines.splitlines()[1:3] == [
        "npm error code ERESOLVE",
        "npm error ERESOLVE unable to resolve dependency tree",
    ]
    assert f"{' '.join(message.lines.splitlines())} {message.remedy}" == NPM_MESSAGE


def test_a_text_without_sentences_is_shown_in_full_when_it_is_opened() -> None:
    message = split_long_message("x" * 2000)
    assert message is not None
    assert (message.remedy, message.lines) == ("", "x" * 2000)
