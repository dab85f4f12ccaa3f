"""Tasksets of `verifiers` 0.4, played by our engine and scored by their own rewards.

The library's rollouts need a harness process and an HTTP endpoint. Here an `Env.run` is driven as it is, with seats
whose turns are answered by the policy: each turn is committed to a `Trace`, and `Task.score(trace)` gives the reward.
A plain taskset is played in one turn. What needs a container, tools or several agents is refused by name.

The trace holds messages and no tokens: rewards that count tokens see none.
"""
