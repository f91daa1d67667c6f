"""Which of many names and descriptions fits some words best."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from roundgate.backends.search import Ranking, stem, word_stems

TITLES = [
    "Create an issue",
    "Create an issue comment",
    "List repository issues",
    "Delete a repository",
    "Create a fork",
    "Get the settings of forks of private repositories",
    "Cancel a workflow run",
    "Get a release",
    "Create a release",
    "Get a branch",
    "Delete a reference",
]
READS = frozenset(
    number for number, title in enumerate(TITLES) if title.startswith(("Get ", "List "))
)
RANKING = Ranking((1.0,), [(title,) for title in TITLES], READS)


def everything(number: int) -> bool:
    return True


@pytest.mark.parametrize(
    ("query", "first"),
    [
        ("create issue", "Create an issue"),
        ("open an issue", "Create an issue"),
        ("comment on the issue", "Create an issue comment"),
        ("listing the issues of a repo", "List repository issues"),
        ("removeRepository", "Delete a repository"),
        ("make a fork", "Create a fork"),
        ("stop a running workflow", "Cancel a workflow run"),
        ("publish a release", "Create a release"),
        ("delete a branch", "Delete a reference"),
        ("release", "Get a release"),
        ("publsh a release", "Create a release"),
        ("cancel a workfow", "Cancel a workflow run"),
        ("workflwo", "Cancel a workflow run"),
        ("commment on the issue", "Create an issue comment"),
    ],
)
def test_what_is_meant_comes_first(query: str, first: str) -> None:
    assert TITLES[RANKING.best(query, 1, everything)[0]] == first


def test_only_what_is_allowed_is_found_and_no_more_than_is_wanted() -> None:
    found = RANKING.best("create issue", 2, lambda number: number != 0)
    assert len(found) == 2
    assert 0 not in found


def test_words_that_nothing_has_find_nothing() -> None:
    assert RANKING.best("xylophone", 5, everything) == []
    assert RANKING.best("the of a", 5, everything) == []
    assert Ranking((1.0,), []).best("anything", 5, everything) == []


@pytest.mark.parametrize(
    "forms", ["issue issues", "list listing listed lists", "run running runs", "query queries"]
)
def test_forms_of_a_word_have_one_stem(forms: str) -> None:
    assert len({stem(form) for form in forms.split()}) == 1


def test_names_are_taken_apart() -> None:
    for name in ("listForRepo", "list_for_repo", "list-for-repo", "LIST for repository"):
        assert word_stems(name) == ["list", "repo"]


@given(st.text(max_size=200))
def test_any_query_is_answered(query: str) -> None:
    assert len(RANKING.best(query, 3, everything)) <= 3
