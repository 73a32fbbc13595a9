"""The command line as a whole: what it prints and the exit codes it gives, whatever the verb."""

import subprocess
import sys

import pytest
import typer

from starprof import __version__, cli
from starprof.errors import RunFileError, UsageError

HEAVY = ("torch", "numpy", "pandas", "scipy", "sklearn", "plotly", "duckdb", "pyarrow", "rich", "pynvml", "psutil")


def starprof(*args, **options):
    return subprocess.run([sys.executable, "-m", "starprof", *args], capture_output=True, text=True, **options)


def with_verb(monkeypatch, command):
    """Run `main` with one extra verb that does what the test wants."""
    build = cli.build_app

    def app():
        built = build()
        built.command("try")(command)
        return built

    monkeypatch.setattr(cli, "build_app", app)
    return cli.main(["try"])


def test_version_names_program_and_version():
    done = starprof("--version")
    assert (done.returncode, done.stdout) == (0, f"starprof {__version__}\n")


def test_help_lists_the_verbs():
    assert starprof("--help").returncode == 0


def test_help_imports_nothing_heavy():
    code = "import sys; from starprof.cli import main; main(['--help']); print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not set(HEAVY) & set(done.stderr.split())


def test_error_is_one_line_on_stderr_with_its_exit_code(monkeypatch, capsys):
    def verb():
        raise RunFileError("x.starprof was not written by starprof")

    assert with_verb(monkeypatch, verb) == 1
    assert capsys.readouterr() == ("", "starprof: x.starprof was not written by starprof\n")


def test_wrong_call_is_exit_code_2(monkeypatch):
    def verb():
        raise UsageError("--rate must be positive")

    assert with_verb(monkeypatch, verb) == 2


def test_unknown_option_is_exit_code_2():
    done = starprof("--no-such-option")
    assert done.returncode == 2
    assert "--no-such-option" in done.stderr


def test_interrupt_is_exit_code_130(monkeypatch):
    def verb():
        raise KeyboardInterrupt

    assert with_verb(monkeypatch, verb) == 130


@pytest.mark.parametrize("code", [0, 3])
def test_verb_chooses_its_exit_code(monkeypatch, code):
    def verb():
        raise typer.Exit(code)

    assert with_verb(monkeypatch, verb) == code


def test_bug_is_not_hidden(monkeypatch):
    def verb():
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        with_verb(monkeypatch, verb)


def test_reader_that_goes_away_is_no_traceback():
    code = (
        "import sys, typer; from starprof import cli; build = cli.build_app\n"
        "def app():\n"
        "    built = build(); built.command('try')(lambda: print('x' * 1000)); return built\n"
        "cli.build_app = app; sys.stdin.read(); sys.exit(cli.main(['try']))"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    child.stdout.close()
    child.stdin.close()
    assert child.stderr.read() == b""
    child.stderr.close()
    assert child.wait() == 1
