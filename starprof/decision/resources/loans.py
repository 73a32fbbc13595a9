"""What jobs have lent to others, and what is given back when a job ends or returns to synchronous SGD."""

from __future__ import annotations

from dataclasses import dataclass

from starprof.decision.resources.amounts import Amount
from starprof.decision.resources.reallocation import Reallocation


@dataclass(frozen=True, slots=True)
class Loan:
    """A delay that one job bears on a node for another.

    Attributes:
        node: where.
        lender: whose workers are delayed.
        borrower: who uses what that frees.
        delay_s: of each of the lender's iterations.
        frees: what that frees.
    """

    node: str
    lender: str
    borrower: str
    delay_s: float
    frees: Amount


@dataclass(frozen=True, slots=True)
class Change:
    """New delay of a job's workers on a node, for whoever carries it out; 0: they run freely again."""

    node: str
    job: str
    delay_s: float


@dataclass(frozen=True, slots=True)
class Loans:
    """All loans that hold. Nothing is kept elsewhere: the delay of a job on a node is the sum of its loans there."""

    held: tuple[Loan, ...] = ()

    def delay_s(self, node: str, job: str) -> float:
        """By which a job's workers on a node are delayed now."""
        return sum(loan.delay_s for loan in self.held if (loan.node, loan.lender) == (node, job))

    def with_plan(self, plan: Reallocation) -> tuple[Loans, tuple[Change, ...]]:
        """The loans when a plan is carried out, and what changes by it. A refused plan changes nothing."""
        new = tuple(
            Loan(plan.node, delay.job, plan.need.job, delay.delay_s, delay.frees)
            for delay in (() if plan.refused else plan.delays)
        )
        after = Loans(self.held + new)
        return after, after._changes(new)

    def without(self, job: str) -> tuple[Loans, tuple[Change, ...], tuple[Loan, ...]]:
        """A job has ended, or is back in synchronous SGD.

        Returns:
            The loans that stay; what changes for those whose delays end; and the loans that others had of this job, who
            must plan anew.
        """
        returned = tuple(loan for loan in self.held if loan.borrower == job)
        void = tuple(loan for loan in self.held if loan.lender == job and loan.borrower != job)
        after = Loans(tuple(loan for loan in self.held if job not in (loan.borrower, loan.lender)))
        return after, after._changes(tuple(loan for loan in returned if loan.lender != job)), void

    def _changes(self, touched: tuple[Loan, ...]) -> tuple[Change, ...]:
        places = dict.fromkeys((loan.node, loan.lender) for loan in touched)
        return tuple(Change(node, job, self.delay_s(node, job)) for node, job in places)
