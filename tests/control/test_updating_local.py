"""Steps that a loop makes with its own gradients, and schedules that keep pace with the training."""

from torch import optim
from torch.optim import lr_scheduler
from updating_loop import Loop, Training, gradients


def scheduled(model):
    optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, 40)
    training = Training(model, [optimizer], lambda: None, schedule)

    def update():
        optimizer.step()
        training.between()
        schedule.step()

    training.between = lambda: None
    training.update = update
    return training


def local(loop, given):
    loop.backward()
    loop.put(given)
    loop.updating.learn()
    loop.updating.local()
    loop.training.update()


def stepped(then):
    """A loop after some native steps, one of its own, and what comes then."""
    with Loop(scheduled) as loop:
        for number in range(6):
            loop.native(gradients(loop.model, number))
        told = then(loop)
        assert loop.updating.refusal is None
        return told


def test_the_loop_makes_its_own_steps_itself_and_schedules_keep_pace_with_those_of_others():
    def mine(loop):
        local(loop, gradients(loop.model, 6))
        before = loop.state()[0]
        loop.updating.epoch_ended()
        loop.updating.keep_pace(3)
        assert loop.state()[0] == before
        return loop.state()

    def plainly(loop):
        local(loop, gradients(loop.model, 6))
        for _ in range(3):
            loop.training.stateful[0].step()
        return loop.state()

    assert stepped(mine) == stepped(plainly)


def test_a_meeting_in_the_middle_of_a_step_of_its_own_comes_after_the_rest_of_it():
    def met(loop):
        whole = []

        def meet():
            loop.updating.complete_own()
            whole.append(loop.state())

        loop.training.between = meet
        local(loop, gradients(loop.model, 6))
        assert whole == [loop.state()]
        return loop.state()

    def plainly(loop):
        local(loop, gradients(loop.model, 6))
        return loop.state()

    assert stepped(met) == stepped(plainly)


def test_gradients_of_a_group_are_no_unknown_code():
    def shared(loop):
        for number in range(70):  # now and then a loop is looked at closely
            loop.backward()
            loop.updating.learn()
            loop.put(gradients(loop.model, number))
            loop.updating.local()
            loop.training.update()
            loop.updating.epoch_ended()
        assert not loop.updating.deviated

    stepped(shared)
