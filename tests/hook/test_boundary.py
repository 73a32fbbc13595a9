import signal

import pytest

from starprof.hook.boundary import LIMIT, Guard


class Reports(list):
    def __call__(self, count, detail):
        self.append((count, detail))


@pytest.fixture
def guard():
    guard = Guard()
    guard.report = Reports()
    return guard


def broken(*_args):
    raise KeyError("ours")


def passed(_args, _kwargs):
    return 1


class Counted:
    def __init__(self, error=None):
        self.calls = []
        self.error = error

    def __call__(self, *args, **kwargs):
        self.calls.append((args, kwargs))
        if self.error:
            raise self.error
        return "result"


@pytest.mark.parametrize(("enter", "leave"), [(broken, broken), (passed, broken), (passed, None), (broken, None)])
def test_the_users_function_runs_once_with_its_result_whatever_fails_in_ours(guard, enter, leave):
    original = Counted()
    assert guard.around(original, enter, leave)(1, a=2) == "result"
    assert original.calls == [((1,), {"a": 2})]


@pytest.mark.parametrize("enter", [broken, passed])
def test_the_users_exception_passes_untouched(guard, enter):
    error = ValueError("theirs")
    original = Counted(error)
    with pytest.raises(ValueError, match="theirs") as caught:
        guard.around(original, enter, broken)()
    assert caught.value is error
    assert len(original.calls) == 1


def test_leave_is_called_also_when_the_users_function_raises(guard):
    left = []
    wrapped = guard.around(Counted(KeyboardInterrupt()), passed, lambda token, result: left.append((token, result)))
    with pytest.raises(KeyboardInterrupt):
        wrapped()
    assert left == [(1, None)]
    assert guard.failed == "KeyboardInterrupt"


def test_the_end_of_an_iterator_is_no_failure(guard):
    with pytest.raises(StopIteration):
        guard.around(Counted(StopIteration()), passed, lambda *_: None)()
    assert guard.failed == ""


def test_without_a_token_leave_is_left_out(guard):
    guard.around(Counted(), lambda *_: None, broken)()
    assert guard.errors == 0


def test_an_error_of_ours_is_counted_and_reported_with_its_place(guard):
    guard.callback(broken)("anything")
    assert guard.errors == 1
    ((count, detail),) = guard.report
    assert count == 1
    assert detail.startswith("KeyError at hook/test_boundary.py:")


def test_a_report_that_fails_is_survived(guard):
    guard.report = broken
    guard.callback(broken)()
    guard.callback(broken)()
    assert guard.errors == 2


def test_after_too_many_errors_the_hook_is_off(guard):
    ours = []

    def failing(_args, _kwargs):
        ours.append(1)
        raise KeyError

    original = Counted()
    wrapped = guard.around(original, failing)
    for _ in range(LIMIT + 5):
        wrapped()
    assert guard.off
    assert len(ours) == LIMIT
    assert len(original.calls) == LIMIT + 5


def test_an_exception_of_the_users_signal_handler_is_theirs_even_inside_our_code(guard):
    class Expired(Exception):
        pass

    def expire(_number, _frame):
        raise Expired

    def interrupted(_args, _kwargs):
        signal.raise_signal(signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, expire)
    try:
        with pytest.raises(Expired):
            guard.around(Counted(), interrupted)()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert guard.errors == 0


def test_our_own_time_is_measured_while_sampling(guard):
    times = iter([100, 130, 200, 205, 300, 310])
    guard = Guard(clock=lambda: next(times))
    guard.sampling = True
    guard.around(Counted(), passed, lambda *_: None)()
    guard.callback(lambda: None)()
    assert guard.own_ns == 30 + 5 + 10
