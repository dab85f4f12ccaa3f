"""Their `Env.run`, with the policy in the place of its agent."""

from __future__ import annotations

import asyncio
import contextlib
import queue
import time
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any

from lecritique.core.errors import DataError, EnvironmentFailure, LecritiqueError, VerifierFailure
from lecritique.core.task import Message
from lecritique.tasks.verifiers.library import library
from lecritique.tasks.verifiers.options import VerifiersOptions


def opening_of(task: Any, row: int) -> tuple[Message, ...]:
    """The messages that one of their tasks opens with.

    Raises:
        DataError: there is none, or one that is no text.
    """
    data = task.data
    if data.prompt is None:
        raise DataError(f"row {row} of task 'verifiers' has no prompt: its user opens, which is not supported")
    prompt = [{"role": "user", "content": data.prompt}] if isinstance(data.prompt, str) else data.prompt
    system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
    return tuple(message_of(raw) for raw in (*system, *prompt))


def message_of(raw: Any) -> Message:
    """One of their messages, or a dict of its fields, as ours; text only."""
    fields = raw if isinstance(raw, Mapping) else {"role": raw.role, "content": raw.content}
    if fields["role"] not in ("system", "user", "assistant") or not isinstance(fields["content"], str):
        raise DataError(f"a message of the taskset is {str(raw)[:100]}, expected text of system, user or assistant")
    return Message(role=fields["role"], content=fields["content"])


@dataclass(frozen=True, kw_only=True)
class Asked:
    """The environment waits for a turn; these messages are new to the policy."""

    messages: tuple[Message, ...]


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The environment is done."""

    reward: float


class Play:
    """One run of `Env.run`: the only seat is played by whoever answers `asked`."""

    def __init__(self, env: Any, task: Any, options: VerifiersOptions) -> None:
        self._library = library()
        self._env, self._task, self._options = env, task, options
        self.events: queue.SimpleQueue[Asked | Ended | LecritiqueError] = queue.SimpleQueue()
        self.answers: asyncio.Queue[str] = asyncio.Queue()
        self.trace: Any = None

    async def run(self) -> None:
        """Play to the end; the last event is the reward or an error."""
        try:
            self.events.put(Ended(reward=await self._reward()))
        except LecritiqueError as error:
            self.events.put(error)
        except self._library.vf.TaskError as error:
            self.events.put(VerifierFailure(f"the taskset's scoring raised: {str(error)[:300]}"))
        except Exception as error:  # the taskset's own code
            self.events.put(EnvironmentFailure(f"the taskset raised {type(error).__name__}: {str(error)[:300]}"))

    async def _reward(self) -> float:
        vf, task = self._library.vf, self._task
        seats = _Seats(self)
        await self._env.setup(seats)
        await self._env.run(task, seats)
        if self.trace is None:
            raise EnvironmentFailure("the taskset's Env.run asked for no turn")
        episode = vf.Episode(env=vf.EnvInfo(id=self._env.config.env_id), task=self.trace.task, traces=[self.trace])
        await self._env.finalize(task, episode)
        unscored = [name for name, reward in self.trace.rewards.items() if reward is None]
        if unscored:
            raise VerifierFailure(f"the taskset left rewards without a score: {', '.join(unscored)}")
        if not self.trace.rewards:
            raise VerifierFailure("the taskset recorded no reward")
        return float(self.trace.reward)

    def new_trace(self, task: Any) -> Any:
        """The trace of the seat's run; there is one."""
        if self.trace is not None:
            raise EnvironmentFailure("the taskset's Env.run plays its agent more than once, expected one run")
        vf = self._library.vf
        state = self._library.generic.concrete_type(type(task), vf.State) or vf.State
        seeded = vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)
        self.trace = vf.Trace(task=seeded, state=state(), agent=vf.AgentInfo(config=vf.AgentConfig()))
        return self.trace


class _Seats:
    """Stands in for their `Agents`: whatever name the environment gives its agent, it is the policy."""

    def __init__(self, play: Play) -> None:
        self._play = play

    def __getattr__(self, name: str) -> _Seat:
        if name.startswith("_"):
            raise AttributeError(name)
        return _Seat(self._play)


class _Seat:
    """Stands in for their `Agent`."""

    def __init__(self, play: Play) -> None:
        self._play = play
        self.trainable = True

    async def run(self, task: Any) -> Any:
        """A run of one turn."""
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return interaction.trace

    @contextlib.asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator[_Interaction]:
        """A run held open turn by turn, scored when it is left."""
        interaction = _Interaction(self._play, task, self._play.new_trace(task))
        yield interaction
        interaction.trace.is_completed = interaction.trace.ok = True
        interaction.trace.stop_condition = interaction.trace.stop_condition or "user_closed"
        await task.score(interaction.trace)


class _Interaction:
    """Stands in for their `Interaction`."""

    def __init__(self, play: Play, task: Any, trace: Any) -> None:
        self.trace = trace
        self._play, self._task = play, task
        self._library, self._options = play._library, play._options
        self._conversation: list[Any] = []
        self._stops = [(self._library.session.hook_boundary(fn, allow_trace=True), fn) for fn in task.hooks("stop")]
        self._turns = 0

    async def turn(self, message: Any = None) -> Any:
        """Send a user turn (none for the task's own prompt), return the policy's answer as their `Segment`."""
        types, segment = self._library.types, self._library.agent.Segment
        if self.trace.stop_condition is not None:
            return segment(messages=[], terminated=True)
        new = self._messages(message)
        self._conversation += new
        if await self._stopped(types.Request, types.Request(messages=self._conversation)):
            return segment(messages=[], terminated=True)
        pending = self._library.graph.prepare_turn(self.trace, list(self._conversation))
        self._play.events.put(Asked(messages=tuple(message_of(each) for each in new)))
        text = await self._play.answers.get()
        answer = types.AssistantMessage(content=text)
        response = types.Response(
            id=f"turn-{self._turns}", created=int(time.time()), model="policy", message=answer, finish_reason="stop"
        )
        pending.commit(response)
        self._conversation.append(answer)
        self._turns += 1
        await self._stopped(types.Response, response)
        await self._stopped(self._library.vf.Trace, self.trace)
        if self._turns >= self._options.max_turns and self.trace.stop_condition is None:
            self.trace.stop_condition = "max_turns"
        return segment(messages=[answer])

    def _messages(self, message: Any) -> list[Any]:
        types = self._library.types
        if message is None and self._turns == 0:
            ours = opening_of(self._task, self._task.data.idx or 0)
        elif message is None:
            raise EnvironmentFailure("the taskset's Env.run asked for a further turn without a message")
        else:
            raw = [{"role": "user", "content": message}] if isinstance(message, str) else list(message)
            ours = tuple(message_of(each) for each in raw)
        kinds = {"system": types.SystemMessage, "user": types.UserMessage, "assistant": types.AssistantMessage}
        return [kinds[each.role](content=each.content) for each in ours]

    async def _stopped(self, boundary: type, value: Any) -> bool:
        """Whether a `@vf.stop` predicate of this boundary ends the exchange."""
        for kind, predicate in self._stops:
            available = {kind: value, "trace": self.trace}
            if kind is boundary and await self._library.session.call_hook(predicate, available):
                self.trace.stop_condition = self.trace.stop_condition or predicate.__name__
        return self.trace.stop_condition is not None
