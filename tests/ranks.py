"""Processes that a test calls a function in, all at once: the ranks of a process group."""

from __future__ import annotations

import contextlib
import datetime
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh

BACKENDS = {"cpu": "gloo", "cuda": "cpu:gloo,cuda:nccl"}  # asynchronous saving wants a CPU's beside
SECONDS = 300  # that a rank waits for another, so that a failure in one ends the call in all


class Ranks:
    """`size` processes with a device mesh of that size, each on a CPU or a device of its own."""

    def __init__(self, device_type: str, size: int) -> None:
        self.folder = tempfile.TemporaryDirectory()
        context = torch.multiprocessing.get_context("spawn")
        self.connections, self.processes = [], []
        for rank in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(
                target=_serve, args=(theirs, device_type, rank, size, self.folder.name), daemon=True
            )
            process.start()
            theirs.close()
            self.connections.append(ours)
            self.processes.append(process)

    def __call__(self, function: Callable[..., Any], *arguments: Any) -> list[Any]:
        """What function(mesh, *arguments) returns in each rank; AssertionError where it raises in one."""
        for connection in self.connections:
            with contextlib.suppress(OSError):  # which recv then tells
                connection.send((function, arguments))
        failures, results = [], []
        for rank, connection in enumerate(self.connections):
            try:
                failed, result = connection.recv()
            except (EOFError, OSError):
                failed, result = True, "the process died"
            (failures if failed else results).append(f"rank {rank}: {result}" if failed else result)
        assert not failures, "\n".join(failures)
        return results

    def close(self) -> None:
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.join(10)
            process.kill()
        self.folder.cleanup()


def _serve(connection: Connection, device_type: str, rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if device_type == "cuda":
        torch.cuda.set_device(rank)
    timeout = datetime.timedelta(seconds=SECONDS)
    store = dist.FileStore(f"{folder}/store", size)  # a port that is free now may be taken a moment later
    dist.init_process_group(BACKENDS[device_type], store=store, rank=rank, world_size=size, timeout=timeout)
    mesh = init_device_mesh(device_type, (size,))
    while True:
        try:
            function, arguments = connection.recv()
        except EOFError:
            break
        try:
            answer = (False, function(mesh, *arguments))
        except BaseException:
            answer = (True, traceback.format_exc())
        connection.send(answer)
    dist.destroy_process_group()
