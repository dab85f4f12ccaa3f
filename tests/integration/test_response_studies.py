"""`diagnose profiles` and `diagnose continuations` on the bundled model: figures, resumption, given critics, junk."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from lecritique.analysis import continuations as continuations_module
from lecritique.analysis.continuation_statistics import Items
from lecritique.analysis.continuations import ContinuationWishes, continued, prefixes_of, study_continuations
from lecritique.analysis.response_profiles import Signals, divergences_from_teacher, profile_statistics
from lecritique.analysis.response_study import (
    StudyWishes,
    cautions_of,
    chosen_critics,
    open_policy,
    part_problems,
    responses_to,
)
from lecritique.analysis.study_critics import given_critic
from lecritique.analysis.study_page import continuations_html, profiles_html
from lecritique.cli.diagnose import diagnose
from lecritique.core.errors import ConfigurationError, DataError
from lecritique.models.scoring import token_row
from lecritique.tasks.splits import split_of

SMALL = (
    "task.rows=48",
    "task.min_empty=6",
    "task.max_empty=8",
    "rollout.batch_size=8",
    "rollout.group_size=2",
)
FAST = ("--critic-problems", "4", "--fit-epochs", "1", "--held-out", "0.5", "--replicates", "40")
app = typer.Typer()
app.add_typer(diagnose, name="diagnose")


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["diagnose", *arguments])


def assert_no_nan(path) -> dict:
    return json.loads(path.read_text(), parse_constant=lambda name: pytest.fail(f"{name} in {path}"))


@pytest.fixture(scope="module")
def frozen():
    return open_policy("demo", SMALL, arm=None)


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A continuation study by the command, which other tests go on with."""
    out = tmp_path_factory.mktemp("study") / "c"
    found = invoke("continuations", "demo", *SMALL, "--problems", "8", "--continuations", "2", *FAST, "--out", str(out))
    assert found.exit_code == 0, found.output
    return out


def test_continuations_by_the_command(study):
    found = assert_no_nan(study / "continuations.json")
    assert list(found["critics"]) == ["clean", "answer", "siblings", "leave_one_out"]
    assert found["problems"] == 4 and found["items"] == 12 and found["method"]["bounds_fitted_on"] == 4
    assert found["cautions"] == [] and found["counts"]["over_length"] == 0
    clean = found["critics"]["clean"]
    whole = clean["all"]["all"]
    assert whole["brier"]["estimate"] == pytest.approx(whole["squared_error"]["estimate"] + whole["noise"]["estimate"])
    assert [of["items"] for of in clean["fractions"].values()] == [4, 4, 4]
    assert sum(of["items"] for of in clean["lengths"].values()) == 12
    assert set(found["contrasts"]) == {"answer", "siblings", "leave_one_out"}
    html = (study / "continuations.html").read_text()
    assert html.count('<svg role="img"') == 2 and "leave-one-out" in html


def test_the_same_call_goes_on_where_it_stopped_and_another_is_refused(study, monkeypatch):
    before = assert_no_nan(study / "continuations.json")
    shutil.rmtree(study / "critics" / "siblings")
    (study / "continuations.json").unlink()
    monkeypatch.setattr(continuations_module, "_played", lambda *_: pytest.fail("sampled again"))
    call = ("continuations", "demo", *SMALL, "--problems", "8", "--continuations", "2", *FAST, "--out", str(study))
    again = invoke(*call)
    assert again.exit_code == 0, again.output
    assert "critic siblings  update" in again.output and "critic answer  update" not in again.output
    assert assert_no_nan(study / "continuations.json") == before
    other = invoke(*call, "--fractions", "0.5")
    assert isinstance(other.exception, ConfigurationError) and "'fractions' = [0.2, 0.5, 0.8]" in str(other.exception)
    part = next((study / "continuations").glob("part-*.json"))
    kept = part.read_text()
    try:
        first = json.loads(kept)
        first[0] |= {"tokens": ["1", "2"]}
        second = json.loads(kept)
        second[0] |= {"truncated": ["no", "no"]}
        third = json.loads(kept)
        third[0] |= {"reward": [10**400, 0]}
        for damaged in (
            *("[]", "{", kept.replace('"actions": 1', '"actions": 2', 1), kept.replace('"tokens"', '"t"')),
            *map(json.dumps, (first, second, third)),
        ):
            part.write_text(damaged)
            refused = invoke(*call)
            assert isinstance(refused.exception, DataError) and "remove it" in str(refused.exception), damaged[:40]
    finally:
        part.write_text(kept)


def test_profiles_by_the_command_with_critics_of_another_study(study, tmp_path):
    given = [word for name in ("clean", "answer") for word in ("--critic", f"{name}={study / 'critics' / name}")]
    out = tmp_path / "p"
    chosen = ("--critics", "clean,answer,leave_one_out", "--problems", "4", *FAST)
    made = invoke("profiles", "demo", *SMALL, *given, *chosen, "--out", str(out))
    assert made.exit_code == 0, made.output
    found = assert_no_nan(out / "profiles.json")
    assert list(found["signals"]) == ["answer", "leave_one_out"] and found["teacher"] == "answer"
    assert found["responses"] == 8 and found["problems"] == 4 and len(found["pairs"]) == 3
    assert "given critic" in found["cautions"][0] and not (out / "critic-responses").exists()
    assert len(found["divergence"]["profile"]) == 10 and found["divergence"]["mean"]["estimate"] > 0
    html = (out / "profiles.html").read_text()
    assert html.count('<svg role="img"') == 2 and "teacher KL" in html


def test_parts_share_no_question_and_critics_are_fitted_on_the_other_side(frozen):
    wanted = {"bounds": 6, "study": 6, "critics": 8}
    rows = part_problems(frozen, wanted, held_out=0.5)
    assert {name: len(of) for name, of in rows.items()} == wanted
    assert len({row for of in rows.values() for row in of}) == 20
    for name, of in rows.items():
        expected = "train" if name == "critics" else "evaluation"
        for row in of:
            task = frozen.base.environment.task(row)
            assert split_of(task, evaluation_fraction=0.5) == expected
    assert part_problems(frozen, wanted, held_out=0.5) == rows
    with pytest.raises(DataError, match="60 different problems are needed from the evaluation part"):
        part_problems(frozen, {"bounds": 30, "study": 30}, held_out=0.5)


def test_a_continuation_keeps_the_prefix_and_is_judged_as_a_whole(frozen, study, tmp_path):
    critics = [given_critic(frozen.base, name, study / "critics" / name) for name in ("clean", "answer")]
    rows = part_problems(frozen, {"study": 3}, held_out=0.5)["study"]
    groups, _ = responses_to(frozen, rows, tmp_path / "r", on_part=lambda *_: None)
    counts = dict.fromkeys(("groups_left_out", "over_length", "failed"), 0)
    prefixes = prefixes_of(frozen, critics, groups, ("clean", "answer"), (0.2, 0.8), counts)
    played = {}
    real = continuations_module._played

    def spied(*arguments):
        found = real(*arguments)
        played.update(zip([p.group_id for p in arguments[1]], found, strict=True))
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(continuations_module, "_played", spied)
        outcomes = continued(frozen, prefixes, 3, tmp_path / "c")
    assert len(prefixes) == 6
    for prefix, outcome in zip(prefixes, outcomes, strict=True):
        source = prefix.source.trajectory
        own = source.token_ids[source.action_mask]
        assert prefix.actions == int((0.2, 0.8)[prefix.fraction] * len(own) + 1e-9)
        for member, reward in zip(played[prefix.group_id], outcome["reward"], strict=True):
            ids = member.turns[0].completion.token_ids
            assert ids[: prefix.actions].tolist() == own[: prefix.actions].tolist()
            assert len(ids) > prefix.actions
            judged = frozen.base.environment.start(member.task).reply(frozen.base.renderer.decode(ids))
            assert reward == member.reward == judged.reward
        # The value of a prefix is that of the state before the first token left out.
        for critic in critics:
            (whole,) = critic.values([token_row(source, prefix.source.contexts[critic.name])], max_tokens=2048)
            (at,) = critic.values([continuations_module._row(prefix, critic.name)], max_tokens=2048)
            assert at == pytest.approx(whole[[prefix.actions]], abs=1e-5)


def test_an_item_is_left_out_for_all_critics_alike(frozen, study, tmp_path):
    critics = [given_critic(frozen.base, name, study / "critics" / name) for name in ("clean", "answer")]
    rows = part_problems(frozen, {"study": 2}, held_out=0.5)["study"]
    groups, _ = responses_to(frozen, rows, tmp_path / "r", on_part=lambda *_: None)
    contexts = critics[1].contexts(groups[0])
    # Room for what the clean critic reads of every prefix, and not for what the other one does of the last.
    longest = [len(g.trajectories[0].token_ids) + len(contexts[0]) for g in groups]
    short = replace(frozen.base.language, context_length=min(longest) - 8)
    cut = replace(frozen, base=replace(frozen.base, language=short))
    counts = dict.fromkeys(("groups_left_out", "over_length", "failed"), 0)
    kept = prefixes_of(cut, critics, groups, ("clean", "answer"), (0.0, 0.8), counts)
    assert counts["over_length"] == 4 - len(kept) > 0
    outcomes = [
        {"reward": [1.0, 0.0], "tokens": [3, 4], "truncated": [False, True], "error": [None, None]} for _ in kept
    ]
    outcomes[0]["error"] = ["verifier", None]
    names = ("clean", "answer")
    items, _, truncated = continuations_module.items_of(frozen, critics, names, kept, outcomes, (1.0, 2.0), counts)
    assert counts["failed"] == 1 and len(items) == len(kept) - 1 == truncated
    assert {len(column) for column in items.predictions.values()} == {len(items)}


def test_episodes_of_several_turns_are_continued_too(tmp_path):
    turns = ("task.form=multi_turn", "task.min_empty=4", "task.max_empty=6", "sampling.max_turn_tokens=4")
    frozen = open_policy("demo", [*SMALL, *turns, "task.rows=24"], arm=None)
    wishes = StudyWishes(critics=("clean", "leave_one_out"), critic_problems=2, epochs=0, held_out=0.5)
    own = ContinuationWishes(problems=6, continuations=2, replicates=5)
    found = study_continuations(frozen, chosen_critics(frozen, wishes), wishes, own, tmp_path)
    assert found["counts"]["failed"] == 0 and found["items"] == 9
    assert found["mean_continuation_tokens"] > 0


def test_a_teacher_that_reads_the_same_agrees_everywhere(frozen, tmp_path):
    rows = part_problems(frozen, {"study": 2}, held_out=0.5)["study"]
    groups, _ = responses_to(frozen, rows, tmp_path / "r", on_part=lambda *_: None)
    read = [token_row(trajectory) for group in groups for trajectory in group.trajectories]
    found = divergences_from_teacher(frozen.model, read, read, temperature=2.0, max_tokens=256)
    assert [len(column) for column in found] == [int(row.mask.sum()) for row in read]
    assert max(float(np.abs(column).max()) for column in found) < 1e-6


def test_profiles_by_hand():
    """Two problems; the other critic is right at the second half of every response."""
    signals = Signals(
        problem=[4, 4, 9],
        returns=[1.0, 0.0, 1.0],
        values={
            "clean": [np.array([0.5, 0.5])] * 3,
            "answer": [np.array([0.5, 1.0]), np.array([0.5, 0.5]), np.array([0.5, 1.0])],
        },
        teacher=[np.array([0.0, 2.0]), np.array([0.0, 4.0]), np.array([1.0, 1.0])],
        counts={},
    )
    found = profile_statistics(signals, replicates=20)
    profile = [one["estimate"] for one in found["signals"]["answer"]["profile"]]
    # Tokens stand at 1/4 and 3/4; problems count equally: (.25 + 0) / 2 and .25.
    assert [profile[b] for b in (2, 7)] == pytest.approx([0.0, (0.125 + 0.25) / 2])
    assert [b for b in range(10) if profile[b] is not None] == [2, 7]
    assert [found["divergence"]["profile"][b]["problems"] for b in (2, 3)] == [2, 0]
    assert found["divergence"]["profile"][7]["estimate"] == pytest.approx((3.0 + 1.0) / 2)
    assert found["pairs"][0]["a"] == "answer" and found["pairs"][0]["estimate"] == pytest.approx(0.1875 / 2)


def test_pages_escape_what_comes_from_outside(study):
    found = assert_no_nan(study / "continuations.json")
    evil = "<script>alert(1)</script>"
    for key in ("critics", "gains", "contrasts", "origins"):
        found[key] = {evil if name == "answer" else name: of for name, of in found[key].items()}
    found |= {"task": evil, "origin": evil, "cautions": [evil], "origins": {evil: evil}}
    assert "<script>alert" not in continuations_html(found)
    both = {
        "profile": [{"problems": 0, "estimate": None, "low": None, "high": None}] * 10,
        "mean": {"estimate": 0.1, "low": 0.05, "high": 0.2},
    }
    page = profiles_html(
        found
        | {
            "signals": {evil: both}, "pairs": [{"a": evil, "b": evil, **both["mean"]}], "divergence": None,
            "teacher": None, "responses": 1, "mean_return": 0.5, "critics": {evil: evil},
            "counts": {"over_length": 0, "without_tokens": 0, "groups_left_out": 0, "failed": 0},
            "method": found["method"] | {"bins": 10},
        }
    )  # fmt: skip
    assert "<script>alert" not in page and "smaller by 0.100" in page


def test_bad_input_is_one_sentence(frozen, study, tmp_path):
    out = ("--out", str(tmp_path / "x"))

    def refused(*arguments: str) -> str:
        found = invoke("continuations", *arguments, *out)
        assert isinstance(found.exception, ConfigurationError | DataError), found.output
        return str(found.exception)

    assert "no critic 'nonsense'" in refused("demo", *SMALL, "--critics", "clean,nonsense")
    assert "'solution' cannot be studied" in refused("demo", *SMALL, "--critics", "clean,solution")
    assert "not among them" in refused("demo", *SMALL, "--critics", "answer")
    assert "trains no critic" in refused("demo", *SMALL, "--arm", "mean")
    assert "ascending numbers" in refused("demo", "--fractions", "0.8,0.2")
    assert "expected NAME=PATH" in refused("demo", "--critic", "clean")
    assert "expected both, solution" in str(invoke("profiles", "demo", "--teacher", "x", *out).exception)
    assert "no such reference" in str(invoke("profiles", "demo", *SMALL, "--teacher", "both", *out).exception)
    with pytest.raises(ConfigurationError, match="nothing there says what this critic is told"):
        given_critic(frozen.base, "mine", study / "critics" / "clean")
    alone = open_policy("demo", [*SMALL, "rollout.group_size=1", "critic.warmup=discard"], arm="value")
    with pytest.raises(ConfigurationError, match=r"studied here: 'rollout\.group_size' = 1 leaves"):
        chosen_critics(alone, StudyWishes(critics=("clean", "siblings")))


def test_critics_that_were_not_fitted_alike_are_a_caution(frozen, study):
    one, other = (given_critic(frozen.base, name, study / "critics" / name) for name in ("clean", "answer"))
    assert cautions_of(frozen, [replace(one, updates=3), replace(other, updates=3)]) == []
    (caution,) = cautions_of(frozen, [replace(one, updates=3), replace(other, updates=2)])
    assert "clean 3, answer 2" in caution


def test_items_know_their_number():
    empty = np.zeros(0, dtype=np.int64)
    assert (
        len(Items(problem_N=empty, fraction_N=empty, stratum_N=empty, outcomes_NK=np.zeros((0, 2)), predictions={}))
        == 0
    )
