"""Folds a spool into a database exactly once, as `starprof.store.ingest` folds it into a run file."""

from __future__ import annotations

from starprof.errors import SpoolError
from starprof.spool.layout import Spool
from starprof.store.clickhouse.address import parse
from starprof.store.clickhouse.run import ClickHouseRun
from starprof.store.ingest import PLACE, FoldReport, at_work_on, check_place, fold_into, known_of


def fold_into_database(spool: Spool, place: str, *, final: bool = False, wait_s: float = 5.0) -> FoldReport:
    """Fold everything that is new into the run in the database that the spool is of.

    A spool that another node could not deliver goes into its run as well; what that is called stays as node 0 knows it.

    Args:
        spool: where to read.
        place: address of the database.
        final: also empty the rings; the job is over, or its recorder is gone.
        wait_s: how long to wait for another ingester.

    Raises:
        RunFileLocked: the spool is in use for longer than `wait_s`.
        UsageError: the address can't be used.
        StoreError: the database can't be reached or used.
        SpoolError: the spool can't be read or cleared, or its run is not there.
    """
    address = parse(place).of_run("")
    with at_work_on(spool, wait_s):
        check_place(spool, address.text)
        known = known_of(spool)
        ours = PLACE in known
        began = known.get("started_unix_ns")
        with ClickHouseRun.open(address, run_id_of(spool), started_unix_ns=began) as run:
            if run.is_new and not ours:
                raise SpoolError(f"{spool.root} belongs to a run that is not in {address.text}: push the run first")
            return fold_into(run, spool, final=final, describe=ours)


def run_id_of(spool: Spool) -> str:
    """Id of the run that a spool is of.

    Raises:
        SpoolError: it does not say.
    """
    run_id = known_of(spool).get("run_id")
    if not run_id:
        raise SpoolError(f"{spool.root} does not say of which run it is")
    return str(run_id)
