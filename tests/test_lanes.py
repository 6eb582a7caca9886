"""Dealing clients to lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.lanes import choose_lanes, schedule


def test_schedule_by_hand():
    # Longest first: 5 to lane 0, 4 to lane 1; lane 1 is free at 4 and takes 3, lane 0 at 5 takes 1.
    plan = schedule([3, 5, 1, 4], lanes=2)
    assert plan.first_slot.tolist() == [1, 3]
    assert plan.lane.tolist() == [1, 0, 0, 1]
    assert plan.slot.tolist() == [3, 1, 2, 0]
    assert plan.next_slot.tolist() == [0, 2, -1, -1]
    assert plan.steps.tolist() == [4, 1, 1, 1]
    assert plan.executed == 14  # 7 steps of 2 lanes, 13 of them useful


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.data())
def test_every_client_gets_exactly_its_steps(steps, data):
    lanes = data.draw(st.integers(1, len(steps)))
    plan = schedule(steps, lanes=lanes)
    running = {lane: (int(slot), 0) for lane, slot in enumerate(plan.first_slot)}
    done = {}
    for wait, lane, slot, following in zip(
        plan.steps, plan.lane, plan.slot, plan.next_slot, strict=True
    ):
        running = {k: (s, n + int(wait)) for k, (s, n) in running.items()}
        assert running[lane][0] == slot
        done[int(slot)] = running.pop(lane)[1]
        if following >= 0:
            running[lane] = (int(following), 0)
    assert not running
    assert done == dict(enumerate(steps))


@pytest.mark.parametrize('lanes', [0, 4])
def test_lanes_out_of_range(lanes):
    with pytest.raises(ValueError, match=rf'lanes={lanes} must lie in 1\.\.3'):
        schedule([1, 2, 3], lanes=lanes)


def test_choose_lanes():
    equal = np.full(20, 10)
    assert choose_lanes(equal, cohort_size=10, most=10) == 10
    assert choose_lanes(equal, cohort_size=10, most=5) == 5
    # One client holds nearly everything: any second lane would idle.
    assert choose_lanes(np.array([1, 1, 1, 97]), cohort_size=4, most=4) == 1
