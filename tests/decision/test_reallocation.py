"""Where a mode's need of a node comes from: grant, harvest, deprive, refuse; and what is given back."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from starprof.decision.resources import Amount, Change, Loans, Need, Neighbour, NodeUse, reallocate
from starprof.decision.resources.reallocation import SLACK_USED

HALF_A_CORE = Amount(cores=0.5)


def node(*neighbours: Neighbour, cores: float = 8.0, used: float = 7.0) -> NodeUse:
    return NodeUse("n1", Amount(cores, 1e9), Amount(used, 1e8), neighbours)


def neighbour(job: str = "other", **more: object) -> Neighbour:
    known: dict = {"workers": 2, "iteration_s": 0.5, "freed_per_s": Amount(cores=2.0)}
    return Neighbour(job, **(known | more))


def test_what_is_free_is_granted_and_nobody_is_delayed():
    plan = reallocate(node(neighbour(slack_s=0.3), used=7.0), Need("mine", Amount(1.0, 5e8), 0.2))
    assert plan.granted == Amount(1.0, 5e8)
    assert (plan.delays, plan.cost_share, plan.refused) == ((), 0.0, "")


def test_free_means_capacity_minus_use_and_not_use():
    plan = reallocate(node(used=7.8), Need("mine", Amount(cores=1.0), 0.2))
    assert "0.8 cores still missing" in plan.refused or "0.8 cores are still missing" in plan.refused


def test_slack_of_a_synchronous_job_is_harvested_at_no_cost():
    plan = reallocate(node(neighbour(slack_s=0.2), used=8.0), Need("mine", HALF_A_CORE, 0.01))
    (delay,) = plan.delays
    assert delay.harvested_s == pytest.approx(0.5 / (2 * 2.0))  # two workers free 2 cores each per second of delay
    assert delay.deprived_s == 0.0
    assert delay.frees.cores == pytest.approx(0.5)
    assert (plan.cost_share, plan.refused) == (0.0, "")


def test_no_more_than_the_slack_is_harvested():
    plan = reallocate(node(neighbour(slack_s=0.05), used=8.0), Need("mine", HALF_A_CORE, 0.9))
    (delay,) = plan.delays
    assert delay.harvested_s == pytest.approx(SLACK_USED * 0.05)
    assert delay.deprived_s == pytest.approx((0.5 - 4.0 * SLACK_USED * 0.05) / 4.0)


def test_an_asynchronous_job_has_no_slack():
    plan = reallocate(node(neighbour(slack_s=0.2, synchronous=False), used=8.0), Need("mine", HALF_A_CORE, 0.9))
    assert plan.harvested == Amount()
    assert plan.delays[0].deprived_s == pytest.approx(0.125)


def test_insensitive_and_late_jobs_give_up_more():
    jobs = (neighbour("a", sensitivity=1.0), neighbour("b", sensitivity=0.5), neighbour("c", step=10_000))
    plan = reallocate(node(*jobs, used=8.0), Need("mine", HALF_A_CORE, 0.9))
    freed = {delay.job: delay.frees.cores for delay in plan.delays}
    assert freed == pytest.approx({"a": 0.1, "b": 0.2, "c": 0.2})


def test_what_a_job_can_not_give_the_others_give():
    jobs = (neighbour("short", iteration_s=0.01), neighbour("long", iteration_s=10.0))
    plan = reallocate(node(*jobs, used=8.0), Need("mine", HALF_A_CORE, 5.0))
    freed = {delay.job: delay.frees.cores for delay in plan.delays}
    assert freed == pytest.approx({"short": 0.04, "long": 0.46})


def test_it_is_refused_when_others_would_lose_as_much():
    need = Need("mine", HALF_A_CORE, 0.25)
    one = node(neighbour(), used=8.0)  # a delay of 125 ms of 500 ms: 25 %
    refused = reallocate(one, need)
    assert refused.refused.startswith("staying in synchronous SGD costs mine 25 %")
    assert (refused.delays, refused.granted) == ((), Amount())
    assert reallocate(one, replace(need, delay_share=0.26)).refused == ""


def test_a_job_that_loses_nothing_is_refused_even_what_is_free():
    assert "costs mine 0 %" in reallocate(node(), Need("mine", HALF_A_CORE, 0.0)).refused


def test_it_is_refused_when_all_together_can_not_free_it():
    plan = reallocate(node(neighbour(), used=8.0), Need("mine", Amount(cores=100.0), 9.0))
    assert "100 cores are still missing" in plan.refused
    assert plan.steps[-1].startswith("refuse")


def test_the_job_itself_is_nobody_to_take_from():
    assert reallocate(node(neighbour("mine", slack_s=0.3), used=8.0), Need("mine", HALF_A_CORE, 0.5)).refused


def test_every_step_is_explained():
    plan = reallocate(node(neighbour(slack_s=0.05), used=7.9), Need("mine", HALF_A_CORE, 0.9))
    assert [step.partition(":")[0] for step in plan.steps] == ["grant", "harvest", "deprive", "cost"]


@pytest.mark.parametrize("wrong", [{"workers": 0}, {"iteration_s": math.nan}, {"sensitivity": 0.0}, {"slack_s": -1.0}])
def test_a_neighbour_out_of_range_is_an_error(wrong: dict):
    with pytest.raises(ValueError, match=next(iter(wrong))):
        neighbour(**wrong)


neighbours = st.builds(
    neighbour,
    st.sampled_from(["a", "b", "c", "d"]),
    workers=st.integers(1, 4),
    iteration_s=st.floats(0.05, 5.0),
    freed_per_s=st.builds(Amount, st.floats(0.0, 4.0), st.floats(0.0, 1e9)),
    slack_s=st.floats(0.0, 1.0),
    sensitivity=st.floats(0.1, 2.0),
    step=st.integers(0, 50_000),
    synchronous=st.booleans(),
)
groups = st.lists(neighbours, max_size=4, unique_by=lambda n: n.job)


@settings(max_examples=60, deadline=None)
@given(groups, st.floats(0.0, 4.0), st.floats(0.0, 1e9), st.floats(0.001, 20.0))
def test_a_plan_covers_the_need_within_all_bounds(jobs, cores, rate, delay_share):
    whole = node(*jobs, used=7.5)
    need = Need("mine", Amount(cores, rate), delay_share)
    plan = reallocate(whole, need)
    if plan.refused:
        return
    freed = sum((delay.frees for delay in plan.delays), Amount())
    assert need.extra.within(plan.granted + freed)
    assert plan.granted.within(whole.free)
    by_job = {job.job: job for job in jobs}
    for delay in plan.delays:
        job = by_job[delay.job]
        assert delay.harvested_s <= job.slack_s * job.synchronous + 1e-12
        assert delay.cost_share <= 1.0 + 1e-9
    assert plan.cost_share < need.delay_share
    assert plan.cost_share >= plan.least_cost_share * (1.0 - 1e-6)


@settings(max_examples=60, deadline=None)
@given(groups, st.floats(0.01, 4.0))
def test_of_one_resource_the_least_cost_is_that_of_a_linear_programme(jobs, cores):
    """And a need is refused as uncovered exactly when the programme has no solution."""
    plan = reallocate(node(*jobs, used=8.0), Need("mine", Amount(cores=cores), 1e9))
    slack = sum(j.all_free_per_s.cores * SLACK_USED * j.slack_s * j.synchronous for j in jobs)
    left = cores - slack
    if left <= 1e-9 * cores:
        assert (plan.refused, plan.cost_share) == ("", 0.0)
        return
    best = linprog(
        [j.sensitivity / j.iteration_s for j in jobs] or [0.0],
        A_ub=np.array([[-j.all_free_per_s.cores for j in jobs] or [0.0]]),
        b_ub=[-left],
        bounds=[(0.0, j.iteration_s / j.sensitivity) for j in jobs] or [(0.0, 0.0)],
    )
    if best.status == 2:
        assert "still missing" in plan.refused
    elif best.fun > 1e-6:
        assert plan.least_cost_share == pytest.approx(best.fun, rel=1e-5, abs=1e-9)


def loan_plan(borrower: str):
    return reallocate(node(neighbour(slack_s=0.2), used=8.0), Need(borrower, HALF_A_CORE, 0.5))


def test_delays_of_one_lender_add_up_and_end_with_their_borrowers():
    loans, changes = Loans().with_plan(loan_plan("x"))
    assert changes == (Change("n1", "other", pytest.approx(0.125)),)
    loans, changes = loans.with_plan(loan_plan("y"))
    assert changes == (Change("n1", "other", pytest.approx(0.25)),)
    loans, changes, void = loans.without("x")
    assert changes == (Change("n1", "other", pytest.approx(0.125)),)
    loans, changes, void = loans.without("y")
    assert (loans, changes, void) == (Loans(), (Change("n1", "other", 0),), ())


def test_when_a_lender_ends_its_borrowers_must_plan_anew():
    loans, _ = Loans().with_plan(loan_plan("x"))
    loans, changes, void = loans.without("other")
    assert (loans, changes) == (Loans(), ())
    assert [loan.borrower for loan in void] == ["x"]


def test_a_refused_plan_lends_nothing():
    plan = reallocate(node(), Need("x", HALF_A_CORE, 0.0))
    assert Loans().with_plan(plan) == (Loans(), ())
