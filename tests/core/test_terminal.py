"""What reaches a terminal of the names in the files of strangers."""

import pytest

from reverie.core.errors import RunError
from reverie.core.logger import logger, print_line
from reverie.core.terminal import formula_free, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\x1b[31mRED\x1b[0m", r"a\x1b[31mRED\x1b[0m"),
        ("\x9b31m\x7f\x00\x07\r", r"\x9b31m\x7f\x00\x07\r"),
        ("abc\u202etxt\u2066\u2069\u200f\u2028", r"abc\u202etxt\u2066\u2069\u200f\u2028"),
        ("caf\udce9", r"caf\udce9"),
    ],
)
def test_commands_are_shown_and_not_obeyed(text, shown, capsys):
    assert printable(text) == shown
    print_line(text)
    logger.warning(text)
    assert capsys.readouterr() == (f"{shown}\n", f"warning: {shown}\n")
    assert str(RunError(f"{text} is damaged.")) == f"{shown} is damaged."


@pytest.mark.parametrize("text", ["", "plain", "two\nlines\tand a tab", "naïve, 日本語, עברית, 🙂, é"])
def test_all_other_text_is_unchanged(text):
    assert printable(text) == text


def test_spreadsheets_compute_nothing():
    cells = ["=1+1", "+1", "-1", "@x", "\tx", "a=1", "", 3, -3.5, None, [1]]
    assert [formula_free(cell) for cell in cells] == ["'=1+1", "'+1", "'-1", "'@x", "'\tx", *cells[5:]]
