"""Functions, classes and folders stay small; what may pass a bound is in a list with a reason, which only shrinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture import sizes
from tests.architecture.sizes import Allowed, Size

BRANCHY = """
class Clerk:
    def __init__(self, rows):
        self.rows, self.count = rows, 0
        self.rows = [row for row in rows if row and row > 0 or self.count]

    def each(self):
        def inner(row):
            return 1 if row else 2

        for row in self.rows:
            yield inner(row)
"""


@pytest.fixture(scope="module")
def measured() -> list[Size]:
    return sizes.measure()


def test_nothing_passes_a_bound_without_an_entry_or_grows_past_its_own(measured: list[Size]) -> None:
    found = sizes.missing(measured, sizes.allowed())

    assert not found, f"make these smaller, or say why not in {sizes.ALLOWED}:\n{sizes.as_entries(found)}"


def test_no_entry_of_the_list_is_left_over(measured: list[Size]) -> None:
    found = sizes.needless(measured, sizes.allowed())

    assert not found, f"take these out of {sizes.ALLOWED}: {[f'{one.kind}: {one.where}' for one in found]}"


def test_a_function_counts_its_lines_its_branches_and_its_boolean_operators() -> None:
    found = {(one.kind, one.where): one.value for one in sizes.sizes_of(Path("a/clerk.py"), BRANCHY)}

    assert found["function complexity", "a/clerk.py Clerk.__init__"] == 4  # the comprehension, `and` and `or`
    assert found["function complexity", "a/clerk.py Clerk.each"] == 3  # with the function inside it
    assert found["function complexity", "a/clerk.py Clerk.each.inner"] == 2
    assert found["function lines", "a/clerk.py Clerk.each"] == 6
    assert found["class methods", "a/clerk.py Clerk"] == 2
    assert found["class attributes", "a/clerk.py Clerk"] == 2


@pytest.mark.parametrize(("decorator", "attributes"), [("dataclass", 2), ("dataclass(frozen=True)", 0)])
def test_fields_count_where_a_dataclass_may_change(decorator: str, attributes: int) -> None:
    source = f"@{decorator}\nclass Row:\n    first: int\n    second: int = 0\n"

    found = {one.kind: one.value for one in sizes.sizes_of(Path("row.py"), source)}

    assert found["class attributes"] == attributes


def test_a_size_over_its_bound_needs_an_entry_that_is_as_large() -> None:
    large, larger = Size("folder modules", "a", 18), Size("folder modules", "a", 19)
    entry = Allowed("folder modules", "a", 18, "One module for each resource of the API.")

    assert sizes.missing([large], []) == [large]
    assert sizes.missing([large], [entry]) == []
    assert sizes.missing([larger], [entry]) == [larger]
    assert sizes.missing([Size("folder modules", "a", 15)], []) == []


def test_an_entry_is_left_over_once_its_size_keeps_the_bound_or_is_gone() -> None:
    entry = Allowed("folder modules", "a", 18, "One module for each resource of the API.")

    assert sizes.needless([Size("folder modules", "a", 16)], [entry]) == []
    assert sizes.needless([Size("folder modules", "a", 15)], [entry]) == [entry]
    assert sizes.needless([], [entry]) == [entry]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('["folder modules"]\n"a" = { at_most = 18, why = " " }', "no reason"),
        ('["folder size"]\n"a" = { at_most = 18, why = "A reason." }', "no bound"),
    ],
)
def test_an_entry_needs_a_known_kind_and_a_reason(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "allowed.toml"
    path.write_text(text)

    with pytest.raises(ValueError, match=why):
        sizes.allowed(path)


def test_what_is_missing_is_printed_as_entries_to_paste(tmp_path: Path) -> None:
    path = tmp_path / "allowed.toml"
    found = [Size("folder modules", "a", 18), Size("folder modules", "b/c", 16)]
    path.write_text(sizes.as_entries(found).replace('why = ""', 'why = "A reason."'))

    assert sizes.missing(found, sizes.allowed(path)) == []
