"""Files of several jobs in one place: what tells them apart, and what does not."""

import itertools
from pathlib import Path

import pytest

from starprof.importers.parts import by_overlap
from starprof.importers.source import Source


def divide(told, **how):
    parts = by_overlap({Source(name, Path(name)): frozenset(ranks) for name, ranks in told.items()}, **how)
    return [[source.name for source in part] for part in parts]


def test_files_that_tell_nothing_twice_are_one_job_wherever_they_lie():
    assert divide({"n0/rank0": {0}, "n1/rank1": {1}, "rank2": {2}}) == [["n0/rank0", "n1/rank1", "rank2"]]


def test_the_folders_at_which_the_overlap_ends_are_the_jobs():
    told = {f"{job}/{node}/r": {rank} for job in "ab" for rank, node in enumerate(("n0", "n1"))}
    assert divide(told) == [["a/n0/r", "a/n1/r"], ["b/n0/r", "b/n1/r"]]


def test_an_archive_divides_like_a_folder():
    assert divide({"x.tar!a/0": {0}, "x.tar!b/0": {0}}) == [["x.tar!a/0"], ["x.tar!b/0"]]


def test_names_without_their_rank_tell_jobs_apart_in_one_folder():
    names = [f"{job}_rank{rank}.json" for rank in range(2) for job in ("lr1", "lr2")]
    assert divide({name: {int(name[-6])} for name in names}) == [
        ["lr1_rank0.json", "lr1_rank1.json"],
        ["lr2_rank0.json", "lr2_rank1.json"],
    ]


def test_captures_of_the_same_ranks_are_told_by_their_order():
    told = {"w0.111.json": {0}, "w0.222.json": {0}, "w1.112.json": {1}, "w1.223.json": {1}}
    assert divide(told) == [["w0.111.json", "w1.112.json"], ["w0.222.json", "w1.223.json"]]


def test_what_nothing_divides_stays_together():
    assert divide({"w0.1": {0}, "w0.2": {0}, "w1.1": {1}}) == [["w0.1", "w0.2", "w1.1"]]


def test_files_that_may_be_whole_jobs_are_each_one_where_nothing_else_tells():
    assert divide({"w0.1": {0}, "w0.2": {0}, "w1.1": {1}}, alone=True) == [["w0.1"], ["w0.2"], ["w1.1"]]


@pytest.mark.parametrize("order", list(itertools.permutations(["a/0", "a/1", "b/0", "b/1"])))
def test_the_order_of_the_files_does_not_matter(order):
    parts = divide({name: {int(name[-1])} for name in order})
    assert sorted(map(sorted, parts)) == [["a/0", "a/1"], ["b/0", "b/1"]]
