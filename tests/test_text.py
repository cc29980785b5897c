"""Numbers and names in words."""

import pytest

from quantkit.text import counted, number, percent, printable, size, table


@pytest.mark.parametrize(
    ("name", "shown"),
    [("y", "y"), ("é:0", "é:0"), ("y\n", "y\\n"), ("\x1b[31m", "\\x1b[31m"), ("a\udcff", "a\\udcff"), ("", "")],
)
def test_names_cannot_break_a_line_or_steer_a_terminal(name, shown):
    assert printable(name) == shown


def test_tables_stay_tables_whatever_the_names():
    assert table([("a\nb", "1"), ("c", "22")], ("name", "n")) == ["name   n", "a\\nb   1", "c     22"]


def test_counts_and_numbers():
    assert [counted(n, "node") for n in (0, 1, 1234)] == ["0 nodes", "1 node", "1,234 nodes"]
    assert (size(999), size(35_210), percent(0.99999), number(None)) == ("999 B", "35.2 kB", "99.9 %", "-")


def test_nouns_that_end_in_s():
    assert [counted(n, "class") for n in (0, 1, 2)] == ["0 classes", "1 class", "2 classes"]
