"""Roles as actors of a Ray cluster. The run's process keeps everything that decides; an actor holds one role.

    run's process                                       actors, in one placement group
    orchestrator, credit, replay, ledger, records
      RemoteEngine          one round at a time ──────► EngineHost       (any number)
      RemoteCritic          rows of token ids ────────► ScoringHost      (any number)
      RemotePolicyTrainer   policy batches ───────────► TrainerHost, or LeadingHost ◄── collectives ──► FollowingHost
      RemoteValueTrainer    value batches ────────────► TrainerHost, or LeadingHost (rank 0)      (ranks 1, 2, ...)
                            ◄── weights and states as files of the run's directory, with digests ──►

A trainer on several ranks is a `TrainerGroup` (`groups.py`): its rank 0 is asked, and the others do the same, by the
code of local runs (`distributed/leading.py`).

`crew.py` starts actors and replaces engines and evaluators that end; a trainer that ends takes the run back to its
newest checkpoint (`runtime/restoring.py`). `ray_cluster.py` is all that imports Ray. What an actor holds is built by
`runtime/hosting.py` from the run's configuration, with the functions that build the roles of one process.
"""
