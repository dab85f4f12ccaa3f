"""A single-turn taskset: sums, with a weighted second reward and a hint for value functions."""

import verifiers.v1 as vf


class SumsConfig(vf.TasksetConfig):
    count: int = 6


class SumsData(vf.TaskData):
    answer: str


class SumsTask(vf.Task[SumsData, vf.State, vf.TaskConfig]):
    @property
    def value_function_prompt(self) -> str:
        return f"The sum is {self.data.answer}."

    @vf.reward(weight=0.75)
    async def correct(self, trace: vf.Trace) -> float:
        return float(trace.last_reply == self.data.answer)

    @vf.reward(weight=0.25)
    async def short(self, trace: vf.Trace) -> float:
        if trace.last_reply == "raise":
            raise RuntimeError("scorer broken")
        return float(0 < len(trace.last_reply) <= 3)


class SumsTaskset(vf.Taskset[SumsTask, SumsConfig]):
    def load(self):
        for n in range(self.config.count):
            yield SumsTask(SumsData(prompt=f"1+{n}=", system_prompt="Add.", answer=str(1 + n)), self.config.task)


__all__ = ["SumsTaskset"]
