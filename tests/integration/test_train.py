"""Every estimator, context and loss trains; the same seed gives the same numbers; failures are data."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from lecritique.config.losses import PolicyLoss, ValueLoss
from lecritique.core.errors import ConfigurationError, DataError, DivergenceError, RoleFailure
from lecritique.runtime.base_reward import base_reward
from lecritique.runtime.build import build, load_base
from lecritique.runtime.synchronous import train_step
from lecritique.tasks.sudoku.environment import SudokuEnvironment
from tests.integration.short_runs import small_config, small_parts, trained, without_clocks

ESTIMATORS = {
    "mean": ("estimator.type=mean",),
    "mean, std": ("estimator={type='mean',scale='std'}",),
    "mean, overlong": ("estimator={type='mean',scale='std',overlong={type='soft',limit=18,cache=6}}",),
    "leave_one_out": ("estimator.type=leave_one_out",),
    "value": ("estimator.type=value",),
    "value, lambda": ("estimator={type='value',gamma=0.99,gae_lambda=0.9}", "critic.value_target_lambda=0.8"),
    "value, by length": ("estimator={type='value',gae_lambda={alpha=0.2}}", "critic.value_target_lambda={alpha=0.3}"),
    "value, adaptive": ("estimator={type='value',gae_lambda={bias_weight=1.0}}",),
    "tether": ("estimator.type=tether",),
    "tether, unclipped": ("estimator={type='tether',clip=false,decay=0.0}",),
    "tether, by position": ("estimator={type='tether',horizon=4096}",),
    "evpo": ("estimator.type=evpo",),
    "evpo, lagged": ("estimator={type='evpo',lagged=true}",),
}
CONTEXTS = {
    "clean": ("critic.context.type=none",),
    "prefix": ("critic.context={type='reference',placement='system_prefix'}",),
    "suffix": ("critic.context={type='reference',placement='user_suffix'}",),
}
POLICY_LOSSES = {
    "dppo": ("policy.loss.type=dppo",),
    "reinforce": ("policy.loss.type=reinforce",),
    "reinforce, ratio": ("policy.loss={type='reinforce',on_policy=false}",),
    "ppo": ("policy.loss.type=ppo",),
    "dapo": ("policy.loss.type=dapo",),
}
REDUCTIONS = {name: (f"policy.loss.reduction={name}",) for name in ("token_mean", "response_mean")}
UPDATES = {
    "one step": (),
    "whitened": ("policy.whiten=true",),
    "minibatches": ("policy.minibatch_size=4", "policy.epochs=2"),
}
VALUE_LOSSES = {
    "bce": ("critic.loss.type=bce",),
    "categorical": ("critic.loss={type='categorical',low=-0.5,high=1.5,atoms=5}",),
    "hl_gauss": ("critic.loss={type='hl_gauss',low=-0.5,high=1.5,atoms=21}",),
    "mse": ("critic.loss.type=mse",),
    "clipped_mse": ("critic.loss={type='clipped_mse',eps_v=0.2}",),
}
LEVELS = (ESTIMATORS, CONTEXTS, POLICY_LOSSES, REDUCTIONS, UPDATES, VALUE_LOSSES)
CRITICS = [name for name in ESTIMATORS if not name.startswith(("mean", "leave_one_out"))]
HOT = "sampling.temperature=1.6"  # so that rewards differ inside groups, however good the model is
ONE_STEP = "reinforce"  # is on-policy for one optimizer step only


def combination(e: int, p: int, *, value: int, context: int, reduction: int, update: int) -> tuple[str, ...]:
    """Levels by index, each modulo how many there are."""
    chosen = zip(LEVELS, (e, context, p, reduction, update, value), strict=True)
    names = [list(levels)[index % len(levels)] for levels, index in chosen]
    if names[2] == ONE_STEP and names[4] == "minibatches":
        names[4] = "one step"
    return tuple(names)


# Every two levels meet, which a test checks; the slow sweep has every estimator x policy loss x value loss.
GRID = [
    combination(e, p, value=e + p, context=e + 2 * p + p // 3, reduction=e // 2 + p, update=e // 3 + e + 2 * p)
    for e, p in itertools.product(range(len(ESTIMATORS)), range(len(POLICY_LOSSES)))
]
SWEEP = [
    combination(e, p, value=v, context=e + p + v, reduction=e + p, update=p + v)
    for e, p, v in itertools.product(*map(range, map(len, (ESTIMATORS, POLICY_LOSSES, VALUE_LOSSES))))
    if v == 0 or list(ESTIMATORS)[e] in CRITICS
]


@pytest.fixture(scope="module")
def base():
    """Loaded once; each test builds its own roles on a copy of the model."""
    return load_base(small_config("run.save_rollouts_every=0"))


def weights(model: torch.nn.Module) -> list[torch.Tensor]:
    return [parameter.detach().clone() for parameter in model.parameters()]


def moved(before: list[torch.Tensor], model: torch.nn.Module) -> float:
    return max((a - b).abs().max().item() for a, b in zip(before, model.parameters(), strict=True))


def name_of(combined: tuple[str, ...]) -> str:
    return " | ".join(combined)


def train_two_steps(combined: tuple[str, ...]) -> None:
    """Both roles move, on finite numbers."""
    estimator, _, _, _, update, value = combined
    overrides = [override for levels, name in zip(LEVELS, combined, strict=True) for override in levels[name]]
    parts = small_parts(HOT, *overrides)
    before = weights(parts.learner.policy.model)
    critic = parts.learner.values.trainer.model if parts.learner.values else None
    critic_before = weights(critic) if critic else []
    rows = trained(parts)
    assert moved(before, parts.learner.policy.model) > 0
    for row in rows:
        assert all(math.isfinite(row[name]) for name in ("policy_loss", "policy_grad_norm", "advantage_std"))
        if update != "minibatches":  # on-policy
            assert row["sampler_gap_nats"] < 1e-4 and abs(row["ratio_mean"] - 1) < 1e-4
    assert update != "minibatches" or rows[0]["sampler_gap_nats"] > 1e-3
    assert [row["policy_steps"] for row in rows] == ([4, 8] if update == "minibatches" else [1, 2])
    assert [row["staleness_max"] for row in rows] == [0, 0]
    assert (estimator in CRITICS) == (critic is not None)
    if critic:
        assert moved(critic_before, critic) > 0
        assert [row["value_version"] for row in rows] == [0, 1]
        assert all(math.isfinite(row["value_loss"]) and row["value_loss"] > 0 for row in rows)
        assert math.isfinite(rows[0]["value_bias"]) and 0 <= rows[1]["gae_lambda"] <= 1
        assert ("value_clip_fraction" in rows[0]) == (value == "clipped_mse")
    if estimator.startswith("tether"):
        assert rows[0]["rho"] == 0 and rows[1]["rho"] != 0
    assert rows[0]["advantage_std"] > 0.01, "the rewards do not differ inside any group: nothing was tested"


@pytest.mark.parametrize("combined", GRID, ids=name_of)
def test_every_two_options_train_two_steps(combined):
    train_two_steps(combined)


@pytest.mark.slow
@pytest.mark.parametrize("combined", SWEEP, ids=name_of)
def test_every_estimator_policy_loss_and_value_loss_trains_two_steps(combined):
    train_two_steps(combined)


def test_the_grid_holds_every_two_levels_together():
    apart = []
    for a, b in itertools.combinations(range(len(LEVELS)), 2):
        together = {(combined[a], combined[b]) for combined in GRID}
        apart += [pair for pair in itertools.product(LEVELS[a], LEVELS[b]) if pair not in together]
    assert apart == [(ONE_STEP, "minibatches")]
    trios = {(combined[0], combined[2], combined[5]) for combined in SWEEP if combined[0] in CRITICS}
    assert trios == set(itertools.product(CRITICS, POLICY_LOSSES, VALUE_LOSSES))


@pytest.mark.parametrize(("union", "levels"), [(PolicyLoss, POLICY_LOSSES), (ValueLoss, VALUE_LOSSES)])
def test_every_loss_is_in_the_grid(union, levels):
    kinds = {member.model_fields["type"].default for member in union.__args__[0].__args__}
    # `opsd` reads no advantages and goes with no estimator of the grid.
    assert kinds - {"opsd"} == {name.split(",")[0] for name in levels}


@pytest.mark.parametrize("kind", ["forward_kl", "reverse_kl", "jsd"])
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_every_distillation_trains(kind, reduction):
    parts = small_parts(
        f"policy.loss={{type='opsd',kind='{kind}',reduction='{reduction}'}}", *UPDATES["minibatches"], arm="opsd"
    )
    before = weights(parts.learner.policy.model)
    rows = trained(parts)
    assert moved(before, parts.learner.policy.model) > 1e-7 and all(row["opsd_divergence"] > 0 for row in rows)
    assert rows[1]["policy_steps"] == 8 and all(row["policy_grad_norm"] > 0 for row in rows)


@pytest.mark.parametrize("value_loss", VALUE_LOSSES)
@pytest.mark.parametrize("estimator", ["value, lambda", "value, adaptive", "tether", "evpo"])
def test_every_estimator_and_value_loss_trains_in_the_other_order(estimator, value_loss):
    schedule = ("critic.schedule.type=train_then_score", "policy.loss.type=ppo", *UPDATES["minibatches"])
    parts = small_parts(HOT, *ESTIMATORS[estimator], *VALUE_LOSSES[value_loss], *schedule)
    before = weights(parts.learner.values.trainer.model)
    rows = trained(parts)
    assert moved(before, parts.learner.values.trainer.model) > 1e-7
    assert [row["value_updates"] for row in rows] == [2, 4] and rows[1]["policy_steps"] == 8
    assert all(math.isfinite(row[name]) for row in rows for name in ("policy_loss", "value_loss"))


def test_a_reasoning_gym_set_trains():
    # The tiny model knows the symbols of Sudoku only: the questions are replaced, the scoring is real.
    task = "task={type='reasoning_gym',dataset='leg_counting',rows=8,prompt_template='12 34'}"
    rows = trained(small_parts(task, "sampling.max_turn_tokens=4", arm="pvf"))
    assert [row["rollouts"] for row in rows] == [8, 8] and rows[1]["value_updates"] == 2
    assert all(0 <= row["reward"] <= 1 and math.isfinite(row["policy_loss"]) for row in rows)


@pytest.mark.parametrize("arm", ["mean", "tether", "pvf", "evpo"])
def test_the_same_seed_gives_the_same_numbers_and_another_does_not(arm):
    first, second, other = (without_clocks(trained(small_parts(f"run.seed={seed}", arm=arm))) for seed in (3, 3, 4))
    assert first == second
    assert first != other


def test_arms_ask_the_same_rows_and_start_from_the_same_weights():
    asked, start, heads = [], [], []
    for arm in ("mean", "value", "tether"):
        parts = small_parts("run.seed=5", arm=arm)
        asked.append(parts.stream.groups(0, 40))
        start.append(torch.cat([p.flatten() for p in weights(parts.learner.policy.model)]))
        if parts.learner.values:
            heads.append(parts.learner.values.trainer.model.head.weight.detach().clone())
        parts.engine.close()
    assert asked[0] == asked[1] == asked[2] and asked[0] != small_parts("run.seed=6", arm="mean").stream.groups(0, 40)
    assert torch.equal(start[0], start[1]) and torch.equal(start[0], start[2]) and torch.equal(*heads)


def test_the_first_batch_of_two_arms_is_the_same():
    names = ("reward", "response_tokens", "truncated_fraction")
    mean, tether = (trained(small_parts(arm=arm), steps=1)[0] for arm in ("mean", "tether"))
    assert [mean[name] for name in names] == [tether[name] for name in names]


def test_a_group_of_one_works_with_a_critic():
    rows = trained(small_parts("rollout.group_size=1", "critic.warmup=discard", arm="value"))
    assert rows[1]["value_updates"] == 2 and rows[0]["groups_dropped"] == 0 and rows[1]["policy_steps"] == 2


@pytest.mark.parametrize(("arm", "warmup"), [("value", "discard"), ("value", "leave_one_out"), ("tether", "discard")])
def test_warm_up_withholds_or_replaces_the_credit(arm, warmup):
    parts = small_parts("critic.warmup_updates=2", f"critic.warmup={warmup}", "run.steps=4", arm=arm)
    before = weights(parts.learner.policy.model)
    rows, distances = [], []
    for step in range(3):
        rows.append(train_step(parts, step).metrics)
        distances.append(moved(before, parts.learner.policy.model))
    parts.engine.close()
    withheld = [row["policy_batches_withheld"] for row in rows]
    assert [row["value_version"] for row in rows] == [0, 1, 2]
    if warmup == "discard":
        assert withheld == [1, 2, 2] and distances[:2] == [0, 0] and distances[2] > 0
        assert "policy_loss" not in rows[0] and "policy_loss" in rows[2]
    else:
        assert withheld == [0, 0, 0] and distances[0] > 0
        cold = trained(small_parts(arm="leave_one_out"), steps=1)[0]
        assert rows[0]["policy_loss"] == cold["policy_loss"] and rows[0]["advantage_std"] == cold["advantage_std"]


def test_saved_options_of_the_task_are_whole_and_the_data_seed_is_the_runs():
    options = load_base(small_config("run.seed=9")).config.task.options
    assert options["seed"] == 0 and options["size"] == 4 and None not in options.values()  # the recipe says 0
    from lecritique.config.load import Recipe, compose

    own = Recipe(name="r", text="", tree={"task": {"type": "sudoku", "rows": 4}}, arms={}, default_arm="mean")
    puzzles = {}
    for seed in (1, 2):
        loaded = load_base(compose(own, overrides=[f"run.seed={seed}"]))
        assert loaded.config.task.options["seed"] == seed
        puzzles[seed] = [loaded.environment.task(row).messages for row in range(4)]
    assert puzzles[1] != puzzles[2]


def test_the_base_reward_uses_seeds_of_its_own(base):
    again = load_base(base.config)
    assert base_reward(base, rollouts=16) == base_reward(again, rollouts=16)


def failing(monkeypatch, when):
    """Make the verifier of rollouts for which `when(count)` raise."""
    count = itertools.count()
    start = SudokuEnvironment.start

    def broken(self, task):
        episode, number = start(self, task), next(count)
        if when(number):

            def reply(text):
                raise RuntimeError("the verifier crashed")

            episode.reply = reply
        return episode

    monkeypatch.setattr(SudokuEnvironment, "start", broken)


def test_failed_rollouts_are_counted_and_never_wrong(monkeypatch):
    healthy = trained(small_parts(arm="mean"), steps=1)[0]
    failing(monkeypatch, lambda number: number == 0)
    row = trained(small_parts(arm="mean"), steps=1)[0]
    assert row["rollouts_failed"] == 1 and row["rollouts"] == 8 and row["groups_dropped"] == 0
    assert math.isfinite(row["policy_loss"]) and row["reward"] != healthy["reward"] * 7 / 8


def test_failed_rollouts_leave_a_short_minibatch_and_no_error(monkeypatch):
    failing(monkeypatch, lambda number: number < 2)
    row = trained(small_parts("policy.minibatch_size=4", "policy.loss.type=ppo", arm="value"), steps=1)[0]
    assert row["rollouts_failed"] == 2 and row["policy_steps"] == 2 and math.isfinite(row["policy_loss"])


@pytest.mark.parametrize("loss", ["ppo", "dapo"])
def test_a_cut_softmax_trains_and_the_rollout_weight_says_by_how_much_it_was_cut(loss):
    """The sampler's log-prob is that of the renormalised distribution: it is never below the trainer's."""
    weight = "policy.loss.rollout_weight=true"
    rows = trained(small_parts(HOT, "sampling.top_k=2", f"policy.loss.type={loss}", weight, arm="value"))
    for row in rows:
        assert 0.5 < row["rollout_weight_mean"] < 1 - 1e-4 and math.isfinite(row["policy_loss"])
        assert row["update_gap_nats"] < 1e-4 < row["sampler_gap_nats"]


def test_a_group_that_shrinks_to_one_is_dropped_for_group_estimators_and_kept_for_a_critic(monkeypatch):
    failing(monkeypatch, lambda number: number < 3)
    assert trained(small_parts(arm="tether"), steps=1)[0]["groups_dropped"] == 1
    failing(monkeypatch, lambda number: number < 3)
    assert trained(small_parts(arm="value"), steps=1)[0]["groups_dropped"] == 0


def test_too_many_failures_stop_the_run(monkeypatch):
    failing(monkeypatch, lambda number: number < 5)
    with pytest.raises(RoleFailure, match=r"5 of 8 rollouts failed .*'rollout.max_failed_fraction' = 0.5"):
        trained(small_parts(arm="mean"))


def test_nothing_left_is_an_empty_batch_not_a_crash(monkeypatch):
    failing(monkeypatch, lambda number: True)
    for arm in ("mean", "tether"):
        rows = trained(small_parts("rollout.max_failed_fraction=1.0", arm=arm))
        assert [row["policy_batches_empty"] for row in rows] == [1, 2]
        assert math.isnan(rows[1]["reward"]) and rows[1]["policy_steps"] == 0


def test_prompts_over_the_limit_are_a_matter_of_the_data():
    with pytest.raises(DataError, match=r"data\.max_prompt_tokens"):
        trained(small_parts("sampling.max_total_tokens=4", arm="mean"))


@pytest.mark.parametrize(
    "overrides", [("policy.optimizer.learning_rate=1e30",), ("critic.optimizer.learning_rate=1e30",)]
)
def test_divergence_is_an_error_of_its_own(overrides):
    with pytest.raises(DivergenceError):
        trained(small_parts(*overrides, "run.steps=6", arm="value"), steps=6)


def test_a_context_that_the_task_cannot_give_is_refused_before_anything_starts():
    task = "task={type='reasoning_gym',dataset='chain_sum',rows=4}"
    with pytest.raises(DataError, match="worked solution"):
        load_base(small_config(task, "critic.context={type='reference',content='solution'}", arm="value"))
    load_base(small_config(task, "critic.context={type='reference',content='solution'}", arm="mean"))


def test_a_critic_that_cannot_hold_the_rewards_is_refused():
    with pytest.raises(ConfigurationError, match=r"critic\.loss\.type"):
        build(load_base(small_config("critic.loss={type='categorical',low=0.2,high=1.0}", arm="value")))
