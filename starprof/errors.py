"""Everything starprof raises on purpose.

    StarprofError            one line for the user, exit code 1
    ├── UsageError           the call itself is wrong, exit code 2
    ├── RunFileError         a run file can't be opened, is locked, or is not ours
    ├── StoreError           a database with runs can't be reached, refuses, or is written by somebody else
    ├── SpoolError           a spool can't be written or read (full disk, no permission)
    ├── NoDataError          the run holds nothing that could answer the question
    ├── InputError           a file to import is empty, damaged, or of no known format
    └── TransportError       nodes could not talk to each other, or failed to prove who they are

`starprof.cli.main` turns each into one line on stderr and the exit code; nothing else does.
"""


class StarprofError(Exception):
    """Base of all errors meant for the user; its text is one clear line that says what to do."""

    exit_code = 1


class UsageError(StarprofError):
    """The command line or the arguments of a call are wrong."""

    exit_code = 2


class RunFileError(StarprofError):
    """A run file can't be opened, is in use by another recorder, or was not written by starprof."""


class StoreError(StarprofError):
    """A database that holds runs can't be reached, refuses what is asked, or has another writer for the run."""


class SpoolError(StarprofError):
    """A spool directory or segment can't be written or read."""


class NoDataError(StarprofError):
    """A run was readable but holds nothing that could answer the question."""


class InputError(StarprofError):
    """A file to import is empty, damaged, too large for its format, or of no known format."""


class TransportError(StarprofError):
    """Two nodes could not connect, or one failed to authenticate."""
