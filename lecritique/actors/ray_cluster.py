"""Ray: the cluster that actors are started on. The only module that imports it.

The actors die with the run's process: they belong to its Ray job, and are not detached.
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray._private import services as _ray_services
from ray._private import worker as _ray_driver
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from lecritique.actors.cluster import Actor, ActorLost, ClusterSettings, Seat
from lecritique.actors.stage import Answer, Stage
from lecritique.core.errors import ConfigurationError

_SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")
# Calls that wait at an actor: every proxy has one or two under way, so more are a fault.
_PENDING_CALLS = 8
_LISTENER_SECONDS = 10.0
# The threads of an actor that answer whether it lives.
_LIVENESS = "liveness"


class RayActor:
    """One of Ray's actors."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def call(self, method: str, *arguments: Any) -> Future[Any]:
        """What the stage answers."""
        answered: Future[Any] = Future()
        reference = getattr(self._handle, method).remote(*arguments)
        reference.future().add_done_callback(lambda done: _settle(answered, done))
        return answered

    def ping(self) -> Future[Any]:
        """On a thread of its own."""
        answered: Future[Any] = Future()
        try:
            reference = self._handle.ping.options(concurrency_group=_LIVENESS).remote()
        except RayError as error:
            answered.set_exception(ActorLost(_reason(error)))
            return answered
        reference.future().add_done_callback(lambda done: _settle_ping(answered, done))
        return answered

    def kill(self) -> None:
        """End it."""
        with suppress(RayError, ValueError):
            ray.kill(self._handle, no_restart=True)


def _settle(answered: Future[Any], done: Future[Answer]) -> None:
    try:
        answered.set_result(done.result().result())
    except RayError as error:
        answered.set_exception(ActorLost(_reason(error)))
    except Exception as error:  # what the role raised: the caller's
        answered.set_exception(error)


def _settle_ping(answered: Future[Any], done: Future[None]) -> None:
    error = done.exception()
    if error is None:
        answered.set_result(None)
    else:
        answered.set_exception(ActorLost(_reason(error)) if isinstance(error, RayError) else error)


def _reason(error: RayError) -> str:
    """What Ray says of an actor's end, in one line without its table of ids."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip() and not line.startswith("\t")]
    text = next((line for line in lines if "exit detail:" in line), lines[0] if lines else type(error).__name__)
    return text.split("exit detail:")[-1].split(". Some common causes")[0].strip().rstrip(".")[:200]


class RayCluster:
    """A placement group with a bundle for each seat."""

    def __init__(self, group: PlacementGroup, settings: ClusterSettings) -> None:
        self._group = group
        self._bundles = {seat.name: index for index, seat in enumerate(settings.seats)}

    def start(self, seat: Seat, *, log: Path, environment: Mapping[str, str]) -> Actor:
        """A new actor in the seat's bundle."""
        place = PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=self._bundles[seat.name]
        )
        made = ray.remote(concurrency_groups={_LIVENESS: 1})(Stage).options(
            num_cpus=seat.cpus,
            num_gpus=seat.gpus,
            scheduling_strategy=place,
            max_concurrency=seat.concurrent_calls,
            max_pending_calls=_PENDING_CALLS,
            max_restarts=0,
            max_task_retries=0,
        )
        return RayActor(made.remote(seat.name, str(log), dict(environment)))


@contextmanager
def ray_cluster(settings: ClusterSettings) -> Iterator[RayCluster]:
    """A cluster with room for every seat; when the context ends, so do the actors.

    Raises:
        ConfigurationError: there is no such cluster, or it has no room.
    """
    with _connected(settings):
        group = _reserved(settings)
        try:
            yield RayCluster(group, settings)
        finally:
            with suppress(RayError):
                remove_placement_group(group)


@contextmanager
def _connected(settings: ClusterSettings) -> Iterator[None]:
    """Join the cluster, or start one; signals stay as the run has them."""
    if ray.is_initialized():
        raise ConfigurationError("this process is connected to a Ray cluster already; a run connects by itself.")
    local = settings.address == "local"
    folder = Path(tempfile.mkdtemp(prefix="lcray-")) if local else None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # What Ray prints of a worker that died; the run says it itself, in its events.
    _ray_driver.print_to_stdstream = lambda *_, **__: None
    try:
        if local:
            _start(settings, folder)
        else:
            address = _found(settings.address)
            _require_listener(address)
            with _own_signals():
                ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray has no type of its own for this, and raises what it meets
        _remove(folder)
        hint = "" if local else "; `ray start --head` makes one, runtime.address=local starts one for the run alone"
        raise ConfigurationError(
            f"'runtime.address' = '{settings.address}': no Ray cluster can be used ({_first_line(error)}){hint}."
        ) from error
    try:
        yield
    finally:
        with _own_signals():
            ray.shutdown()
        _remove(folder)


def _found(address: str) -> str:
    """Where a cluster is said to be; `auto` by RAY_ADDRESS, by Ray's processes of this machine, or by its last start.

    Raises:
        ConnectionError: nothing is found.
    """
    return str(_ray_services.get_ray_address_from_environment(address, None)) if address == "auto" else address


def _require_listener(address: str) -> None:
    """Raise ConnectionError when nobody listens there: Ray itself would try for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_LISTENER_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"nobody answers at {address}: {error}") from error


def _start(settings: ClusterSettings, folder: Path | None) -> None:
    """Start a cluster; on a busy machine its processes may need another try."""
    deadline = time.monotonic() + settings.start_seconds
    while True:
        try:
            with _own_signals():
                ray.init(address="local", **_local_options(settings, folder))
            return
        except Exception as error:
            with _own_signals():
                ray.shutdown()
            if "timed out" not in str(error) or time.monotonic() > deadline:
                raise


def _local_options(settings: ClusterSettings, folder: Path | None) -> dict[str, Any]:
    return {
        # CPUs are a matter of bookkeeping here: roles that take turns share the cores of a laptop.
        "num_cpus": max(os.cpu_count() or 1, math.ceil(settings.cpus)),
        "object_store_memory": settings.object_store_bytes,
        "include_dashboard": False,
        "log_to_driver": False,
        "logging_level": "ERROR",
        "_temp_dir": str(folder),
        # Ray would run actors behind everything else on the machine; here they are the run.
        "_system_config": {"worker_niceness": 0},
    }


def _reserved(settings: ClusterSettings) -> PlacementGroup:
    """The placement group, once every seat has its place.

    Raises:
        ConfigurationError: the cluster has no room, or none in time.
    """
    found = ray.cluster_resources()
    has = f"the cluster has {found.get('CPU', 0):g} CPUs and {found.get('GPU', 0):g} GPUs"
    asks = f"the roles ask for {settings.cpus:g} CPUs and {settings.gpus:g} GPUs ('runtime.actors')"
    if settings.address == "local" and settings.gpus > found.get("GPU", 0):  # nothing will be added to it
        raise ConfigurationError(f"{asks}, {has}.")
    bundles = [{"CPU": seat.cpus, "GPU": seat.gpus} for seat in settings.seats]
    # Ray refuses a bundle of nothing.
    wanted = [{kind: count for kind, count in bundle.items() if count} or {"CPU": 0.001} for bundle in bundles]
    group = placement_group(wanted, strategy=settings.strategy.upper())
    if not group.wait(timeout_seconds=settings.start_seconds):
        remove_placement_group(group)
        raise ConfigurationError(
            f"{asks}, and got no place within 'runtime.actors.start_seconds' = {settings.start_seconds:g} with "
            f"'runtime.actors.strategy' = '{settings.strategy}'; {has}, some perhaps taken."
        )
    return group


@contextmanager
def _own_signals() -> Iterator[None]:
    """Give back the handlers that Ray replaces; on the main thread, where it can."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for name in _SIGNALS if (number := getattr(signal, name, None))}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, signal.SIG_DFL if handler is None else handler)


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__


def _remove(folder: Path | None) -> None:
    if folder is not None:
        shutil.rmtree(folder, ignore_errors=True)
