"""After the job: stop the agent, gather what is still on its way, fold it in, and say what came out."""

from __future__ import annotations

import shutil
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from starprof.launch import ingest, runinfo, signals
from starprof.launch.agent import AgentKeeper
from starprof.launch.children import Child
from starprof.launch.console import say
from starprof.launch.ingest import Folded, IngestRunner, LastFold
from starprof.launch.journal import Journal
from starprof.launch.link import Link
from starprof.launch.plan import Plan

POLL_S = 0.01
AGENT_PATIENCE_S = 10.0
_HURRY = frozenset({signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT})


class Finish:
    """The end of one recording. A signal to us means: leave what is not done for a later `starprof summary`."""

    def __init__(
        self,
        plan: Plan,
        info: dict[str, Any],
        agent: AgentKeeper,
        ingester: IngestRunner,
        journal: Journal,
        link: Link,
    ) -> None:
        self._plan = plan
        self._info = info
        self._agent = agent
        self._ingest = ingester
        self._journal = journal
        self._link = link
        self._hurried = False

    def run(self) -> None:
        """Do it all."""
        self._agent.ask_to_stop()
        # Loading the ingester takes longer than all the rest: it does so while the agent drains the rings.
        last = LastFold.prepare(self._ingest) if self._link.holds_run_file else None
        with suppress(OSError):  # a full disk: the run then lacks its end, and the ingester says why
            runinfo.write(self._plan.spool.run_json, self._info)
        if not self._until(lambda: not self._agent.running(), AGENT_PATIENCE_S):
            self._agent.kill()
        self._journal.flush()
        self._link.begin_end(drained=self._agent.stopped_cleanly())
        self._until(lambda: not self._link.busy())
        self._link.close()
        for remark in self._link.remarks():
            say(remark)
        if last is not None:
            self._fold_in(last)
        elif self._link.complete():
            shutil.rmtree(self._plan.spool.root, ignore_errors=True)
        else:
            self._keep_for_merge()

    def _fold_in(self, last: LastFold) -> None:
        folded = self._final_ingest(last)
        if folded is None:
            return
        ranks, steps = folded.ranks, folded.steps
        name = self._name
        say(f"wrote {name} ({ranks} rank{'s' * (ranks != 1)}, {steps} step{'s' * (steps != 1)})")
        limit = self._plan.max_size_bytes
        if limit is not None and folded.bytes > limit:
            say(
                f"{name} has {folded.bytes / 1024**2:.3g}M, more than the {limit / 1024**2:.3g}M of --max-size: "
                "step records and the samples around slow steps are kept whatever they take"
            )
        if steps:
            say(f"now: starprof summary {name}")
        else:
            say(_why_no_step(ranks))

    def _keep_for_merge(self) -> None:
        """The spool stays as it is: only node 0's ledger can tell what has arrived there already."""
        spool = _shown(self._plan.spool.root)
        say(f"they are in {spool}; later: starprof merge RUN-OF-NODE-0 {spool} -o NEW-RUN")

    def _final_ingest(self, last: LastFold) -> Folded | None:
        """Fold everything in; None when that did not work (the user has been told)."""
        self._until(lambda: not self._ingest.running())
        for attempt in range(ingest.FINAL_TRIES):
            fold = last if attempt == 0 else LastFold.prepare(self._ingest)
            fold.go()
            if not self._until(partial(_ended, fold.child)):
                fold.child.send(signal.SIGKILL)
            folded = fold.result()
            if not folded.error:
                self._remove_spool(folded)
                return folded
            if self._hurried:
                break
        why = "interrupted" if self._hurried else folded.error
        later = f"summary {self._name}"
        if self._plan.store:
            later = f"store push {_shown(self._plan.spool.root)} {self._plan.store}"
        say(f"not everything is in {self._name} yet ({why}); nothing is lost: `starprof {later}` folds it in")
        return None

    @property
    def _name(self) -> str:
        """The run as the user would name it here."""
        if self._plan.store is None:
            return _shown(self._plan.path)
        address, question, options = self._plan.store.partition("?")
        return f"{address}/{self._info['run_id']}{question}{options}"

    def _remove_spool(self, folded: Folded) -> None:
        """Everything is in the run file: nothing is left to fold in, unless somebody still writes."""
        if not folded.left:
            shutil.rmtree(self._plan.spool.root, ignore_errors=True)

    def _until(self, done: Callable[[], bool], patience_s: float = float("inf")) -> bool:
        """Wait until `done`; False when the patience ran out or the user wants us to leave."""
        deadline_s = time.monotonic() + patience_s
        while not done():
            arrived = signals.wait(POLL_S)
            if arrived is not None and arrived.number in _HURRY:
                self._hurried = True
            if self._hurried or time.monotonic() > deadline_s:
                return done()
        return True


def _ended(child: Child) -> bool:
    return not child.running()


def _why_no_step(ranks: int) -> str:
    if ranks:
        return (
            "no step boundary seen: no optimizer stepped; for a loop of your own call "
            "starprof.watch(model, optimizer), or wrap each step in `with starprof.step():`"
        )
    return (
        "no step boundary seen: no Python process of the job that imports torch was seen; did it run on another "
        "machine, in a container, or with python -I or -E, which ignore PYTHONPATH?"
    )


def _shown(path: Path) -> str:
    """The path as the user would type it here."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)
