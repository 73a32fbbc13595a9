"""What docs/tutorial.md says works, word by word."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

TUTORIAL = Path(__file__).parents[2] / "docs" / "tutorial.md"

TRIES = 3
"""Its repaired job has steps of 3 ms: a machine that is disturbed for a tenth of a second is rightly no healthy one."""

pytestmark = pytest.mark.e2e


def test_the_tutorial_s_commands_work_in_their_order(tmp_path):
    blocks = re.findall(r"^```sh\n(.*?)^```$", TUTORIAL.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    environ = {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    script = "set -euo pipefail\n" + "\n".join(blocks)
    for attempt in range(TRIES):
        folder = tmp_path / str(attempt)
        folder.mkdir()
        done = subprocess.run(
            ["bash", "-c", script], cwd=folder, env=environ, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            break
    assert done.returncode == 0, done.stdout + done.stderr

    said = subprocess.run(
        ["starprof", "summary", "slow.starprof", "--json"],
        cwd=folder,
        env=environ,
        stdout=subprocess.PIPE,
        check=True,
    )
    (finding,) = [f for f in json.loads(said.stdout)["findings"] if f["ranks"]]
    assert (finding["ranks"], finding["cause"]) == ([1], "data-loading")
    assert abs(finding["onset_step"] - 62) <= 3
    assert (folder / "slow.html").stat().st_size > 100_000
