"""A group is credited from one critic version, whatever the evaluator serves meanwhile (known fault 27)."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

import numpy as np
import pytest

from lecritique.core.errors import DivergenceError, Overloaded
from lecritique.core.ids import GroupId, RolloutId
from lecritique.core.trajectory import Trajectory, ValuePrediction, ValueRequest
from lecritique.runtime.events import Scored
from lecritique.runtime.scoring import CompleteGroup, GroupScorer
from tests.unit.small_trajectories import trajectory

GROUP = GroupId(row=3, attempt=0)


class Evaluator:
    """Holds requests until it is told to answer; values are the version that answered."""

    def __init__(self) -> None:
        self.version = 0
        self.full = False
        self.held: list[tuple[tuple[ValueRequest, ...], int, Future[list[ValuePrediction]]]] = []
        self.asked: list[list[int]] = []

    def submit(self, requests: Sequence[ValueRequest], *, minimum_version: int = 0) -> Future[list[ValuePrediction]]:
        if self.full:
            raise Overloaded("full")
        future: Future[list[ValuePrediction]] = Future()
        self.held.append((tuple(requests), minimum_version, future))
        self.asked.append([request.trajectory.rollout_id.member for request in requests])
        return future

    def answer(self) -> None:
        requests, minimum, future = self.held.pop(0)
        assert self.version >= minimum
        future.set_result(
            [
                ValuePrediction(
                    rollout_id=request.trajectory.rollout_id,
                    values=np.where(request.trajectory.action_mask, float(self.version), 0.0),
                    value_version=self.version,
                )
                for request in requests
            ]
        )


def members(count: int) -> tuple[Trajectory, ...]:
    return tuple(trajectory(RolloutId(GROUP, member)) for member in range(count))


class Scene:
    def __init__(self) -> None:
        self.evaluator = Evaluator()
        self.events: list[Scored] = []
        self.scorer = GroupScorer(self.evaluator, self.events.append)
        self.done: list[object] = []

    def early(self, member: Trajectory) -> None:
        self.scorer.score_early([member], [None])

    def complete(self, group: tuple[Trajectory, ...]) -> None:
        asked = CompleteGroup(group_id=GROUP, trajectories=group, contexts=(None,) * len(group))
        self.done += self.scorer.score([asked])

    def answer(self) -> None:
        self.evaluator.answer()
        self.done += self.scorer.take(self.events.pop(0))


def versions(scene: Scene) -> list[int]:
    (group,) = scene.done
    return [prediction.value_version for prediction in group.predictions]  # type: ignore[attr-defined]


def test_fault_27_the_version_changes_between_siblings_2_and_3_and_only_the_older_two_are_scored_again() -> None:
    scene, group = Scene(), members(4)
    for member in group[:2]:
        scene.early(member)
        scene.answer()
    scene.evaluator.version = 1
    scene.early(group[2])
    scene.answer()
    scene.complete(group)
    assert scene.evaluator.asked == [[0], [1], [2], [0, 1, 3]]
    scene.answer()
    assert versions(scene) == [1, 1, 1, 1]
    assert scene.scorer.waiting_groups == 0


def test_versions_that_move_on_during_the_repair_end_in_one_request_for_all() -> None:
    scene, group = Scene(), members(3)
    scene.early(group[0])
    scene.answer()
    scene.evaluator.version = 1
    scene.early(group[1])
    scene.answer()
    scene.complete(group)
    scene.evaluator.version = 2
    scene.answer()
    assert not scene.done
    scene.evaluator.version = 3
    scene.answer()
    assert scene.evaluator.asked[-1] == [0, 1, 2]
    assert versions(scene) == [3, 3, 3]


def test_a_group_whose_members_were_all_scored_early_from_one_version_needs_nothing_more() -> None:
    scene, group = Scene(), members(2)
    for member in group:
        scene.early(member)
        scene.answer()
    scene.complete(group)
    assert len(scene.evaluator.asked) == 2
    assert versions(scene) == [0, 0]


def test_a_group_that_completes_while_a_member_is_being_scored_waits_for_it() -> None:
    scene, group = Scene(), members(2)
    scene.early(group[0])
    scene.complete(group)
    assert scene.evaluator.asked == [[0]]
    scene.answer()
    scene.answer()
    assert versions(scene) == [0, 0]
    assert scene.evaluator.asked == [[0], [1]]


def test_a_full_queue_is_asked_again_in_order() -> None:
    scene, group = Scene(), members(2)
    scene.evaluator.full = True
    scene.early(group[0])
    scene.complete(group)
    scene.scorer.ask_again()
    assert scene.evaluator.asked == []
    scene.evaluator.full = False
    scene.scorer.ask_again()
    scene.answer()
    scene.answer()
    assert versions(scene) == [0, 0]


def test_several_groups_in_one_request_share_a_version_and_come_back_in_order() -> None:
    scene = Scene()
    groups = [
        CompleteGroup(
            group_id=GroupId(row=row, attempt=0),
            trajectories=tuple(trajectory(RolloutId(GroupId(row=row, attempt=0), m)) for m in range(2)),
            contexts=(None, None),
        )
        for row in (5, 2)
    ]
    assert scene.scorer.score(groups) == []
    scene.answer()
    assert [group.group_id.row for group in scene.done] == [5, 2]  # type: ignore[attr-defined]
    assert len(scene.evaluator.asked) == 1


def test_what_the_evaluator_raises_is_raised_where_the_answer_is_taken() -> None:
    scene = Scene()
    scene.complete(members(2))
    _, _, future = scene.evaluator.held.pop(0)
    future.set_exception(DivergenceError("not finite"))
    with pytest.raises(DivergenceError):
        scene.scorer.take(scene.events.pop(0))


def test_values_of_a_group_that_is_given_up_are_forgotten() -> None:
    scene, group = Scene(), members(2)
    scene.early(group[0])
    scene.answer()
    scene.scorer.forget(GROUP)
    scene.complete(group)
    assert scene.evaluator.asked == [[0], [0, 1]]
