"""Which processes record, and what injection does to the others."""

import subprocess
import sys
from pathlib import Path

from hook_job import read_ring

import starprof

TRAIN = """
import torch
from torch import nn
torch.set_num_threads(1)
def train(steps=3):
    model = nn.Linear(20, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        model(torch.randn(4, 20)).sum().backward()
        optimizer.step()
"""


def test_without_a_spool_nothing_is_patched(job):
    probe = TRAIN + "train(); print(torch.autograd.backward.__code__.co_filename)"
    done = job.python(probe, STARPROF_SPOOL="")
    assert done.stdout.strip().endswith("torch/autograd/__init__.py")
    assert not job.spool.root.exists()


def test_disabled_means_off(job):
    done = job.python(TRAIN + "train(); print(torch.autograd.backward.__code__.co_filename)", STARPROF_DISABLE="1")
    assert done.stdout.strip().endswith("torch/autograd/__init__.py")
    assert not job.spool.root.exists()


def test_a_process_that_does_not_train_makes_no_ring_and_one_without_torch_loads_nothing(job):
    done = job.python("import sys, json; print([m for m in sys.modules if 'starprof' in m])")
    assert done.stdout.strip() == "[]"
    job.python("import torch; torch.randn(3).sum()")
    assert not job.spool.root.exists()


def test_a_hidden_sitecustomize_still_runs_and_is_the_module_of_that_name(job):
    theirs = job.folder / "theirs"
    theirs.mkdir()
    (theirs / "sitecustomize.py").write_text("import os\nos.environ['SEEN'] = __file__\nVALUE = 7\n")
    done = job.python(
        TRAIN + "import os, sitecustomize; train(); print(os.environ['SEEN'], sitecustomize.VALUE)",
        PYTHONPATH=f"{Path(starprof.__file__).parent / 'hook' / 'inject'}:{theirs}",
    )
    assert done.stdout.split() == [str(theirs / "sitecustomize.py"), "7"]
    assert done.only.column("step") == [0, 1, 2]


def test_an_interpreter_without_starprof_finds_it_and_nothing_else_beside_it(job):
    home = job.folder / "elsewhere"
    home.mkdir()
    (home / "starprof").symlink_to(Path(starprof.__file__).parent)
    (home / "neighbour.py").write_text("")
    code = """
import sys
sys.path = [p for p in sys.path if "main" not in p]
sys.meta_path = [f for f in sys.meta_path if "editable" not in str(f).lower()]
import starprof
print(starprof.__file__)
try:
    import neighbour
except ImportError:
    print("no neighbour")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=job.environment(STARPROF_HOME=str(home)),
        cwd=job.folder,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines()[1] == "no neighbour"


def test_exec_keeps_the_recording(job):
    script = job.script(TRAIN + "train()", "real.py")
    done = job.python(f"import os, sys\nos.execv(sys.executable, [sys.executable, {str(script)!r}])")
    assert done.only.column("step") == [0, 1, 2]


def test_spawned_and_forked_ranks_have_their_own_rings_and_the_parent_none(job):
    source = (
        TRAIN
        + """
import os, sys
import torch.multiprocessing as mp
def rank(number):
    os.environ["RANK"] = str(number)
    train(2 + number)
if __name__ == "__main__":
    mp.start_processes(rank, nprocs=2, start_method=sys.argv[1])
"""
    )
    for method in ("spawn", "fork"):
        done = job.python(source, method)
        assert {r: len(ring.steps) for r, ring in done.ranks.items()} == {0: 2, 1: 3}
        for path in job.spool.rings.iterdir():
            path.unlink()


def test_a_forked_child_never_writes_to_its_parents_ring(job):
    done = job.python(
        TRAIN
        + """
import os
train(4)
pid = os.fork()
if pid == 0:
    os.environ["RANK"] = "1"
    train(2)
    os._exit(0)
os.waitpid(pid, 0)
train(4)
"""
    )
    assert {rank: len(ring.steps) for rank, ring in done.ranks.items()} == {0: 8, 1: 2}


def test_forked_loader_workers_neither_record_nor_hang_under_heavy_logging(job):
    done = job.python(
        TRAIN
        + """
import logging, os, threading, gc
from torch.utils.data import DataLoader, Dataset
# Logging makes its own locks anew in a child; a buffered file's lock would stay locked, with or without a hook.
class Unbuffered(logging.Handler):
    file = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    def emit(self, record):
        os.write(self.file, self.format(record).encode())
logging.basicConfig(handlers=[Unbuffered()], level=logging.DEBUG)
log = logging.getLogger()
class Noisy(Dataset):
    def __len__(self):
        return 24
    def __getitem__(self, i):
        log.info("item %d", i)
        gc.collect()
        return torch.randn(20)
stop = threading.Event()
def chatter():
    while not stop.wait(0.0005):
        log.debug("still here")
threading.Thread(target=chatter).start()
model = nn.Linear(20, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(4):
    for x in DataLoader(Noisy(), batch_size=4, num_workers=3, multiprocessing_context="fork"):
        model(x).sum().backward()
        optimizer.step()
stop.set()
""",
        timeout=200,
    )
    assert done.only.column("step") == list(range(24))


def test_a_full_disk_is_said_once_and_the_job_goes_on(job):
    done = job.python(
        """
import os
def full(*args):
    raise OSError(28, "No space left on device")
os.posix_fallocate = full
"""
        + TRAIN
        + "train(); train(); print('DONE')"
    )
    assert done.stdout == "DONE\n"
    assert done.stderr.count("is not recorded") == 1
    assert "No space left on device" in done.stderr
    assert done.rings == []


def test_errors_of_the_hook_are_swallowed_counted_and_shown(job):
    done = job.python(
        TRAIN
        + """
train(2)
from starprof.hook.install import install
hook = install().hook
def stopped():
    raise ZeroDivisionError("clock")
hook.recorder.machine._clock = stopped
train(20)
print(hook.guard.errors, hook.guard.off)
"""
    )
    rank = read_ring(done.rings[0])
    assert rank.kinds().count("hook-error") == 20
    assert rank.event("hook-error")[2] == 1
    assert rank.event("hook-error")[3].startswith("ZeroDivisionError at ")
    assert rank.column("step") == [0, 1]


def test_elastic_restarts_are_attempts_and_the_launcher_makes_no_ring(job):
    done = job.torchrun(
        TRAIN
        + """
import os
train(2)
if os.environ["RANK"] + os.environ["TORCHELASTIC_RESTART_COUNT"] == "00":
    os._exit(1)
train(1)
print("DONE", flush=True)
""",
        2,
        "--max-restarts=1",
    )
    rings = [read_ring(path) for path in done.rings]
    steps = {(r.description["attempt"], r.description["rank"]): len(r.steps) for r in rings}
    assert len(rings) == len(steps)
    # The launcher may have stopped rank 1 of the first attempt before it trained.
    assert steps.pop((0, 1), 2) >= 0
    assert steps == {(0, 0): 2, (1, 0): 3, (1, 1): 3}
