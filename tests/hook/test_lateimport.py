import sys

import pytest

from starprof.hook.lateimport import after_import


@pytest.fixture
def package(tmp_path, monkeypatch):
    (tmp_path / "late_one").mkdir()
    (tmp_path / "late_one" / "__init__.py").write_text("from late_one.part import VALUE\n")
    (tmp_path / "late_one" / "part.py").write_text("VALUE = 3\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("late_one", "late_one.part"):
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("package")
def test_the_callback_gets_the_whole_module_once():
    seen = []
    after_import("late_one.part", lambda module: seen.append(module.VALUE))
    assert seen == []
    import late_one

    assert seen == [late_one.VALUE]


@pytest.mark.usefixtures("package")
def test_a_module_that_is_already_there_is_passed_at_once():
    import late_one.part

    seen = []
    after_import("late_one.part", seen.append)
    assert seen == [late_one.part]


@pytest.mark.usefixtures("package")
def test_the_user_may_replace_names_right_after_the_import():
    def change(module):
        module.VALUE = 9

    after_import("late_one.part", change)
    from late_one.part import VALUE

    assert VALUE == 9


def test_a_missing_module_stays_an_import_error():
    after_import("late_missing", lambda module: None)
    with pytest.raises(ModuleNotFoundError):
        import late_missing  # noqa: F401
