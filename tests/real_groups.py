"""Real control groups for tests that are root."""

import contextlib
import time
from pathlib import Path

from starprof.collectors.cgroup import find_mounts


@contextlib.contextmanager
def real_group(name, quota_us):
    """A real group below the first CPU hierarchy, v1 or v2."""
    mount = next(
        m for m in find_mounts(Path("/proc/self/mountinfo").read_bytes(), Path("/sys")) if "cpu" in m.controllers
    )
    folder = mount.point / name
    folder.mkdir()
    try:
        if mount.version == 1:
            (folder / "cpu.cfs_quota_us").write_text(str(quota_us))
        else:
            (mount.point / "cgroup.subtree_control").write_text("+cpu")
            (folder / "cpu.max").write_text(f"{quota_us} 100000")
        yield folder
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                folder.rmdir()
                break
            time.sleep(0.05)
