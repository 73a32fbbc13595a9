"""Layout of a rank's ring file: the one contract between the hook (writer) and the agent (reader).

    offset 0      page 0: header, then the rank's description as JSON
    offset 4096   `slots` slots of `SLOT_BYTES` each

    header, little-endian:
      0  8s   magic "SPROFRNG"
      8  u32  layout version        12  u32  slot bytes
     16  u64  written: slots ever written (the newest is in slot (written - 1) % slots)
     24  u32  slots                 28  u32  schema version
     32  u32  length of the JSON    36  u32  generation of the JSON: odd while it is being changed
     40  u64  heartbeat: CLOCK_MONOTONIC ns of the last hook call that left the process idle-safe
     64  ...  JSON (at most 4032 bytes)

    slot:
      0  u64  sequence number (must equal the slot's place in the stream; torn slots do not)
      8  u32  kind (SLOT_STEP or SLOT_EVENT)     12  u32  bytes used after the slot header
     16  ...  packed row of the `step` table, or EVENT_STRUCT

The file's blocks are allocated before it is mapped (`posix_fallocate`): a store into a mapped page of a full
disk would kill the rank with SIGBUS. A kill of the rank loses nothing, since the pages belong to the kernel.
"""

import struct

MAGIC = b"SPROFRNG"
VERSION = 1
HEADER_BYTES = 4096
JSON_OFFSET = 64
JSON_MAX_BYTES = HEADER_BYTES - JSON_OFFSET
WRITTEN_OFFSET = 16
HEADER = struct.Struct("<8sIIQIIIIQ")
WRITTEN = struct.Struct("<Q")

SLOT_BYTES = 320
SLOT_HEADER = struct.Struct("<QII")
SLOT_STEP = 1
SLOT_EVENT = 2
DEFAULT_SLOTS = 4096

EVENT_STRUCT = struct.Struct("<qqqqq24s200s")
"""attempt, rank, mono_ns, step, value, kind, detail (both UTF-8, NUL padded)."""
