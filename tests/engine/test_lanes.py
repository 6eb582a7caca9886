"""Schedules of clients on lanes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxfed.engine import lanes
from jaxfed.engine.lanes import choose_lanes, schedule


def test_schedule_by_hand():
    # Longest first: 5 to lane 0, 4 to lane 1; lane 1 is free at 4 and takes 3, lane 0 at 5 takes 1.
    plan = schedule([3, 5, 1, 4], lanes=2)
    assert plan.slot.tolist() == [[3, 1, 2, 0]]
    assert plan.lane.tolist() == [[1, 0, 0, 1]]
    assert plan.next.tolist() == [[3, 2, -1, -1]]
    assert plan.first.tolist() == [[1, 0]]
    assert plan.steps.tolist() == [[4, 1, 1, 1]]
    assert plan.clients.tolist() == [4]
    assert plan.executed == 14  # 7 steps of 2 lanes, 13 of them useful
    assert plan.length == 7


def test_schedule_on_devices_by_hand():
    # 9, 8 and 7 to the three devices; the third is free at 7 and takes 2, the second 1 at 8.
    plan = schedule([2, 9, 8, 1, 7], lanes=1, devices=3)
    assert plan.clients.tolist() == [1, 2, 2]
    used = [slots[:n].tolist() for slots, n in zip(plan.slot, plan.clients, strict=True)]
    assert used == [[1], [2, 3], [4, 0]]
    assert plan.steps.sum(axis=1).tolist() == [9, 9, 9]
    assert plan.executed == 27  # nothing but real steps
    assert plan.length == 9


@given(st.lists(st.integers(0, 30), min_size=1, max_size=12), st.data())
def test_every_client_gets_exactly_its_steps(steps, data):
    devices = data.draw(st.integers(1, len(steps)))
    lanes = data.draw(st.integers(1, len(steps) // devices))
    plan = schedule(steps, lanes=lanes, devices=devices)
    done = {}
    for device, count in enumerate(plan.clients):
        running = {lane: [int(at), 0] for lane, at in enumerate(plan.first[device])}
        for position in range(count):
            for counter in running.values():
                counter[1] += int(plan.steps[device, position])
            lane, following = plan.lane[device, position], int(plan.next[device, position])
            at, ran = running.pop(lane)
            assert at == position
            slot = int(plan.slot[device, position])
            assert slot not in done
            done[slot] = ran
            if following >= 0:
                running[lane] = [following, 0]
        # The first position of a lane without clients is a client that another lane trains.
        assert all(at < max(count, 1) for at, _ in running.values())
        assert not plan.steps[device, count:].any()
    assert done == dict(enumerate(steps))


@pytest.mark.parametrize('lanes', [0, 4])
def test_lanes_out_of_range(lanes):
    with pytest.raises(ValueError, match=rf'lanes={lanes} times devices=1 must be in 1\.\.3'):
        schedule([1, 2, 3], lanes=lanes)


def test_choose_lanes():
    equal = np.full(20, 10)
    assert choose_lanes([equal], cohort_size=10, most=10) == 10
    assert choose_lanes([equal], cohort_size=10, most=5) == 5
    assert choose_lanes([equal], cohort_size=10, most=10, devices=2) == 5
    # One client holds nearly everything: any second lane would idle.
    assert choose_lanes([np.array([1, 1, 1, 97])], cohort_size=4, most=4) == 1


def test_a_large_cohort_is_scheduled_few_times(monkeypatch):
    dealt = []

    def count(steps, **keywords):
        dealt.append(len(steps))
        return schedule(steps, **keywords)

    monkeypatch.setattr(lanes, 'schedule', count)
    assert choose_lanes([np.full(20_000, 5)], cohort_size=20_000, most=8) == 8
    assert dealt == [20_000] * 8
    dealt.clear()
    choose_lanes([np.full(10, 5)] * 2, cohort_size=10, most=8)
    assert dealt == [20] * 8 * 20
