"""When a snapshot is due, and which ones stay."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tailfold.snapshots import CostBased, every, never


def test_policies() -> None:
    from tailfold.snapshots import Progress

    assert every(10).due(Progress(10, 0, 0, 0, 0))
    assert not every(10).due(Progress(9, 0, 0, 0, 0))
    assert every(10).reach(Progress(9, 0, 0, 0, 0)) == 1
    assert not never.due(Progress(10**9, 10**12, 1e6, 0, 0))
    cost = CostBased(10)
    assert not cost.due(Progress(100, 20_000, 0.0001, 0, 0))
    assert cost.due(Progress(20_000, 4_000_000, 0.02, 1000, 0.001))
    assert cost.due(Progress(50, 20_000, 0.02, 1000, 0.0001)), "few events that are dear to fold"
    assert not cost.due(Progress(20_000, 4_000_000, 0.02, 3_000_000, 0.001)), "a large state waits"
    assert not cost.due(Progress(20_000, 4_000_000, 0.02, 1000, 1.0)), "a slow snapshot waits"
    for bad in (lambda: every(0), lambda: CostBased(0), lambda: CostBased(-1)):
        with pytest.raises(ValueError, match=r"above 0|from 1"):
            bad()


@given(st.integers(1, 50), st.integers(1, 400))
def test_the_ladder_keeps_both_ends_and_its_gaps(step: int, count: int) -> None:
    from tailfold.snapshots.limits import DENSE, GAP_MOST_EVENTS, GAP_SHARE
    from tailfold.snapshots.retention import kept

    head = step * count + 3
    versions: set[int] = set()
    for version in range(step, step * count + 1, step):
        versions = kept(sorted({*versions, version}), version + 1)
    assert max(versions) == step * count
    assert sorted(versions)[-DENSE:] == sorted(range(step, step * count + 1, step))[-DENSE:]
    ordered = sorted(versions, reverse=True)
    for newer, older in zip(ordered[DENSE:], ordered[DENSE + 1 :], strict=False):
        assert newer - older <= 2 * min((head - newer) * GAP_SHARE, GAP_MOST_EVENTS) + 2 * step
    assert min(versions) == step, "the oldest is the foot of the ladder"
    assert len(versions) <= 4 + 12 * (1 + (head // step).bit_length())
