"""What control does in native steps, once the loop is known: counted in calls, which no busy machine changes."""

MOST_CALLS = 130
"""Of functions of ours, more than the recorder's alone, in a native step of a loop with one optimizer: 119, and what is
done once in many steps, such as a look for orders, spread over the few that are counted."""


def test_a_native_step_takes_few_calls_of_ours_and_none_without_control(job):
    (controlled, _), (recorded, _) = (
        job({"user": "profile", "epochs": 1}, world=2, control=control).wait() for control in (True, False)
    )
    ours = {name for name in controlled["calls"] if name.startswith("control.")}
    assert "control.engine.driver.after_backward" in ours
    extra = sum(controlled["calls"].values()) - sum(recorded["calls"].values())
    assert extra <= MOST_CALLS, sorted(controlled["calls"].items(), key=lambda call: -call[1])
    assert not [name for name in recorded["calls"] if name.startswith("control.")]
