"""GPU times of steps, against events that complete when the test says so."""

import pytest

from starprof.hook.gpuclock import PENDING_LIMIT, GpuClock


class Stream:
    """A GPU that has come as far as `done_ms`; each mark is made at `now_ms`."""

    def __init__(self):
        self.now_ms = 0.0
        self.done_ms = 0.0
        self.made = 0

    def event(self):
        self.made += 1
        return Mark(self)


class Mark:
    def __init__(self, stream):
        self.stream = stream
        self.at = None

    def record(self):
        self.at = self.stream.now_ms

    def query(self):
        return self.stream.done_ms >= self.at

    def elapsed_time(self, end_event):
        return end_event.at - self.at


@pytest.fixture
def stream():
    return Stream()


@pytest.fixture
def gpu(stream):
    return GpuClock(stream.event)


def run_step(gpu, stream, number):
    for span, arrival in ((0, None), (1, 2.0), (3, None)):
        gpu.begin(span)
        if arrival is not None:
            for _ in range(3):
                gpu.arrive()  # only the last gradient counts
            stream.now_ms += arrival
            gpu.arrive()
        stream.now_ms += 1.5
        gpu.end(span)
    gpu.finish([number])


def test_a_step_is_handed_out_once_the_gpu_has_passed_its_last_mark(gpu, stream):
    run_step(gpu, stream, 0)
    assert list(gpu.ready()) == []
    stream.done_ms = stream.now_ms
    assert list(gpu.ready()) == [([0], [1500, 2000, 1500, 1500])]


def test_steps_come_out_in_order(gpu, stream):
    run_step(gpu, stream, 0)
    first = stream.now_ms
    run_step(gpu, stream, 1)
    stream.done_ms = first
    assert [cells for cells, _ in gpu.ready()] == [[0]]
    stream.done_ms = stream.now_ms
    assert [cells for cells, _ in gpu.ready()] == [[1]]


def test_micro_batches_add_up(gpu, stream):
    for _ in range(2):
        gpu.begin(0)
        stream.now_ms += 3
        gpu.end(0)
    gpu.finish([0])
    stream.done_ms = stream.now_ms
    assert next(gpu.ready())[1] == [6000, None, None, None]


def test_without_gradients_the_whole_backward_pass_is_own(gpu, stream):
    gpu.begin(1)
    stream.now_ms += 3
    gpu.end(1)
    gpu.finish([0])
    stream.done_ms = stream.now_ms
    assert next(gpu.ready())[1] == [None, 3000, None, None]


def test_a_gpu_that_lags_too_far_costs_the_oldest_its_times(gpu, stream):
    for number in range(PENDING_LIMIT + 1):
        run_step(gpu, stream, number)
    assert list(gpu.ready()) == [([0], [None] * 4)]


def test_at_the_end_everything_comes_out(gpu, stream):
    run_step(gpu, stream, 0)
    assert list(gpu.ready(flush=True)) == [([0], [None] * 4)]


def test_events_are_used_again(gpu, stream):
    for number in range(50):
        run_step(gpu, stream, number)
        stream.done_ms = stream.now_ms
        assert len(list(gpu.ready())) == 1
    assert stream.made == 7
