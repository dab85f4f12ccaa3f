"""A multi-turn taskset: the policy guesses a number, the environment says higher or lower."""

import asyncio
import itertools

import verifiers.v1 as vf


class GuessingData(vf.TaskData):
    answer: str
    value_function_prompt: str


class GuessingTask(vf.Task[GuessingData, vf.State, vf.TaskConfig]):
    @vf.stop
    async def gave_up(self, response: vf.Response) -> bool:
        return response.message.content == "stop"

    @vf.metric
    async def turns(self, trace: vf.Trace) -> float:
        return float(trace.num_turns)


class GuessingEnvConfig(vf.EnvConfig):
    player: vf.AgentConfig = vf.AgentConfig()


class GuessingEnv(vf.Env[GuessingEnvConfig]):
    async def run(self, task, agents):
        solved = False
        async with agents.player.interaction(task) as interaction:
            segment = await interaction.turn()
            while not segment.terminated and not solved:
                await asyncio.sleep(0)
                guess = segment.last_reply
                if guess == "crash":
                    raise RuntimeError("engine broken")
                if guess == "hang":
                    await asyncio.sleep(60)
                if guess == task.data.answer:
                    solved = True
                    break
                higher = guess.isdecimal() and int(guess) < int(task.data.answer)
                segment = await interaction.turn("higher" if higher else "lower")
        interaction.trace.record_reward("solved", float(solved), 1.0)


class GuessingTaskset(vf.Taskset[GuessingTask, vf.TasksetConfig]):
    INFINITE = True

    def load(self):
        for n in itertools.count():
            answer = str(n * 7 % 10)
            hint = f"It is {answer}."
            yield GuessingTask(GuessingData(prompt=f"Game {n}: guess.", answer=answer, value_function_prompt=hint))


__all__ = ["GuessingEnv", "GuessingTaskset"]
