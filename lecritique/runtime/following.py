"""One of the processes that train with rank 0: `python -m lecritique.runtime.following FOLDER RANK`.

Started by `training_group.py`, whose folder holds the resolved configuration and where the processes meet.
"""

from __future__ import annotations

import sys
from pathlib import Path

from torch.distributed.device_mesh import init_device_mesh

from lecritique.config.schema import RunConfig
from lecritique.core.errors import LecritiqueError, RoleFailure
from lecritique.distributed.groups import Place, process_group
from lecritique.distributed.leading import Follower
from lecritique.distributed.together import Together
from lecritique.runtime.parent import end_with_parent
from lecritique.runtime.sharded_trainers import FollowingModels, Rank
from lecritique.runtime.training_group import CONFIG, MEETING, READY, device_of


def main(folder: Path, rank: int) -> None:
    """Load, join, follow.

    Raises:
        RoleFailure: another process is gone.
    """
    end_with_parent()
    config = RunConfig.model_validate_json((folder / CONFIG).read_text(encoding="utf-8"))
    place = Place(rank=rank, ranks=config.runtime.ranks, local_rank=rank)
    device = device_of(config, place)
    models = FollowingModels(config, device)
    (folder / READY.format(rank=rank)).touch()
    with process_group(place, device, meeting=folder / MEETING):
        ranks, mesh = Together(device), init_device_mesh(device.type, (place.ranks,))
        trainers = models.into_shards(Rank(config=config, ranks=ranks, mesh=mesh))
        try:
            Follower(trainers, ranks=ranks, mesh=mesh).follow()
        except RuntimeError as error:  # what a collective raises when a process is gone
            raise RoleFailure(f"the training of rank {rank} ends: {str(error).splitlines()[0][:200]}") from error


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), int(sys.argv[2]))
    except LecritiqueError as error:
        print(f"lecritique: error on rank {sys.argv[2]}: {error}", file=sys.stderr, flush=True)
        sys.exit(error.exit_code)
