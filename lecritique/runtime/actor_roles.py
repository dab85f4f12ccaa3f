"""The roles of a run whose models live in actors, for `build` in place of those of one process."""

from __future__ import annotations

import contextlib
import shutil
from typing import Any

from lecritique.actors.cluster import Cluster, Seat
from lecritique.actors.crew import Casting, Crew
from lecritique.actors.engine import RemoteEngine
from lecritique.actors.evaluator import RemoteCopies, RemoteCritic, RemoteEvaluator, TrainersCritic, remote_values
from lecritique.actors.groups import TrainerGroup
from lecritique.actors.liveness import Patience
from lecritique.actors.seats import CRITIC, ENGINE, EVALUATOR, POLICY, colocates, ranks_of, seats_of
from lecritique.actors.trainers import PublishedWeights, RemotePolicyTrainer, RemoteValueTrainer
from lecritique.config.engines import Vllm
from lecritique.config.resolve import uses_teacher
from lecritique.config.schema import RunConfig
from lecritique.critic.served import Colocated
from lecritique.critic.system import ServesValues
from lecritique.models.adapters import load_own_weights
from lecritique.runs.directory import RunDirectory
from lecritique.runtime.value_service import served_values

# Folders of a run: what its actors print, and what they and the run hand each other while it goes on.
LOGS, EXCHANGE = "logs", "exchange"
_HOSTING, _GROUP_HOSTING = "lecritique.runtime.hosting", "lecritique.runtime.group_hosting"
_MAKERS = {ENGINE: "engine_host", EVALUATOR: "scoring_host", POLICY: "policy_host", CRITIC: "value_host"}


class ActorRoles:
    """Makes proxies of roles that actors hold.

    Args:
        config: resolved.
        cluster: where actors are started.
        directory: of the run; actors print into its `logs`, weights go through its `exchange`. Where the cluster has
            several machines, all of them must see it under the same path.
        context_length: of the model, tokens.
    """

    def __init__(self, config: RunConfig, cluster: Cluster, directory: RunDirectory, *, context_length: int) -> None:
        self._config = config
        self._context_length = context_length
        place = directory.path.absolute()
        self._exchange = place / EXCHANGE
        self._weights = self._exchange / "weights"
        actors, seats = config.runtime.actors, seats_of(config)
        self.store: PublishedWeights
        """Made by `begin`."""
        self.crew = Crew(
            cluster,
            {seat: self._casting(seat) for seat in seats if not self._in_group(seat)},
            logs=place / LOGS,
            start_seconds=actors.start_seconds,
            patience=Patience(silent_seconds=actors.silent_seconds, stuck_seconds=actors.stuck_seconds),
            restarts=actors.restarts,
            tell=directory.append_event,
        )
        for role in (POLICY, CRITIC):
            cast = {seat: self._casting(seat) for seat in seats if seat.role == role and self._in_group(seat)}
            if cast:
                self.crew.members.append(TrainerGroup(cast, self.crew, self._exchange / "meetings"))

    def begin(self) -> None:
        """Every actor loads its model: version 0 of everything, whatever it held before.

        Raises:
            LecritiqueError: what one of them met.
        """
        shutil.rmtree(self._exchange, ignore_errors=True)
        self._weights.mkdir(parents=True)
        self.store = PublishedWeights(self._weights)
        self.crew.begin()

    def engine(self) -> RemoteEngine:
        """The engine."""
        runtime = self._config.runtime
        vllm = isinstance(runtime.engine, Vllm)  # its rounds are looks at what it does by itself: none repeats a bit
        rows = runtime.engine.rows if isinstance(runtime.engine, Vllm) else runtime.decode_rows
        return RemoteEngine(self.crew.of(ENGINE), rows=rows, exact=runtime.loop == "synchronous" and not vllm)

    def policy_trainer(self, model: Any) -> RemotePolicyTrainer:
        """The policy trainer; `model` is of the same shape and takes the final weights."""
        return RemotePolicyTrainer(
            self.crew.of(POLICY)[0],
            model,
            self.store,
            self._exchange,
            minibatch_size=self._config.policy.minibatch_size,
            teacher=uses_teacher(self._config),
        )

    def value_trainer(self, model: Any) -> RemoteValueTrainer:
        """The value trainer, likewise."""
        return RemoteValueTrainer(self.crew.of(CRITIC)[0], model, self.store, self._exchange)

    def evaluator(self, trainer: RemoteValueTrainer) -> ServesValues:
        """What serves values: on the caller's thread, or on one of its own from evaluators or from the trainer."""
        config, members, length = self._config, self.crew.of(EVALUATOR), self._context_length
        if colocates(config):
            shared: Any = Colocated(TrainersCritic(self.crew.of(CRITIC)[0]), lambda: trainer.updates)  # type: ignore[arg-type]
            return served_values(shared, config, context_length=length, score=remote_values, exclusive=shared.exclusive)
        if config.runtime.loop == "asynchronous":
            copies: Any = RemoteCopies(members)
            return served_values(
                copies, config, context_length=length, score=remote_values, exclusive=contextlib.nullcontext
            )
        return RemoteEvaluator(
            RemoteCritic(members), max_tokens=config.runtime.micro_batch_tokens, context_length=length
        )

    def whole_model(self, role: str, trainer: Any) -> Any:
        """The model that a trainer was made with, with the weights that it has now, to be saved."""
        load_own_weights(trainer.model, trainer.state()["weights"])
        return trainer.model

    def close(self) -> None:
        """End every actor, and remove what was handed over."""
        self.crew.close()
        shutil.rmtree(self._exchange, ignore_errors=True)

    def _in_group(self, seat: Seat) -> bool:
        """Whether the seat is of a trainer on several ranks."""
        return seat.role in (POLICY, CRITIC) and ranks_of(self._config, seat.role) > 1

    def _casting(self, seat: Seat) -> Casting:
        given = self._config.model_dump_json()
        if self._in_group(seat):
            ranks = ranks_of(self._config, seat.role)
            if not seat.number:
                maker = f"{_GROUP_HOSTING}:leading_{_MAKERS[seat.role]}"
                return Casting(maker=maker, arguments=(given, str(self._weights), ranks))
            arguments = (given, "policy" if seat.role == POLICY else "critic", seat.number, ranks)
            return Casting(maker=f"{_GROUP_HOSTING}:following_host", arguments=arguments)
        copies = (2 if self._config.runtime.loop == "asynchronous" else 1,) if seat.role == EVALUATOR else ()
        return Casting(maker=f"{_HOSTING}:{_MAKERS[seat.role]}", arguments=(given, str(self._weights), *copies))
