"""A taskset that this process cannot play: its reward needs a container."""

import verifiers.v1 as vf


class BoxTask(vf.Task[vf.TaskData, vf.State, vf.TaskConfig]):
    @vf.reward
    async def file_is_there(self, runtime: vf.Runtime) -> float:
        return 1.0


class BoxTaskset(vf.Taskset[BoxTask, vf.TasksetConfig]):
    def load(self):
        yield BoxTask(vf.TaskData(prompt="Make a file."))


__all__ = ["BoxTaskset"]
