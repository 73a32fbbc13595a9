"""The command line: one module per verb; `main` turns every StarprofError into one line and an exit code.

Exit codes: 0 ok, 1 operational error, 2 wrong usage, 130 interrupted; `record` passes on the exit code of the job.
Verb modules import typer and the standard library only; what a verb needs is imported inside its command function,
so that `starprof --help` stays instant.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import typer

from starprof import __version__
from starprof.cli import (
    act,
    advise,
    analyze,
    calibrate,
    ctl,
    demo,
    live,
    merge,
    placement,
    ps,
    record,
    report,
    serve,
    simulate,
    sql,
    store,
    summary,
    train_predictor,
)
from starprof.errors import StarprofError

EXIT_INTERRUPTED = 130
ADVISE = ("observe", "suggest", "apply")

VERBS = (
    record.register,
    live.register,
    serve.register,
    summary.register,
    report.register,
    advise.register,
    analyze.register,
    placement.register,
    simulate.register,
    sql.register,
    merge.register,
    store.register,
    ctl.register,
    ps.register,
    act.register,
    calibrate.register,
    train_predictor.register,
    demo.register,
)
"""One line a verb, in the order of `--help`."""


def build_app() -> typer.Typer:
    """The typer application with every verb registered, in the order that `--help` shows."""
    app = typer.Typer(
        name="starprof",
        help="Find, explain and cure stragglers in distributed PyTorch training.",
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for register in VERBS:
        register(app)
    return app


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"starprof {__version__}")
        raise typer.Exit


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code; the entry point of the `starprof` command."""
    try:
        build_app()(args=_with_values(sys.argv[1:] if argv is None else argv), prog_name="starprof")
    except StarprofError as error:
        from starprof.reports.plain import printable

        print(f"starprof: {printable(str(error))}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except SystemExit as leaving:
        return _flushed(_exit_code(leaving))
    return _flushed(0)


def _with_values(argv: Sequence[str]) -> list[str]:
    """`--advise` alone means observe: typer knows no options whose value may be left away."""
    own = list(argv).index("--") if "--" in argv else len(argv)
    found = []
    for at, word in enumerate(argv):
        alone = word == "--advise" and at < own and argv[at + 1 : at + 2] not in [[a] for a in ADVISE]
        found.append("--advise=observe" if alone and argv[0] == "record" else word)
    return found


def _root(
    _version: bool = typer.Option(
        False, "--version", help="Print the version and exit.", is_eager=True, callback=_print_version
    ),
) -> None:
    """Options that stand before the verb."""


def _exit_code(leaving: SystemExit) -> int:
    """The code that the interpreter would have left with."""
    if leaving.code is None:
        return 0
    return leaving.code if isinstance(leaving.code, int) else 1


def _flushed(code: int) -> int:
    """Flush now: a reader that went away (`| head`) must not become a traceback while the interpreter shuts down."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return code
