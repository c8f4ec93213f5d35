"""QEMU's monitor: a socket that answers as QEMU does, with processes in the place of its threads."""
from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

GREETING = {"QMP": {"version": {"qemu": {"micro": 2, "minor": 0, "major": 10}, "package": "pve-qemu-kvm_10.0.2"},
                    "capabilities": ["oob"]}}
EVENT = {"timestamp": {"seconds": 1, "microseconds": 2}, "event": "RTC_CHANGE", "data": {"offset": 0}}


class Qemu:
    """`vcpus` by index and `others` are ids of tasks that can be pinned."""

    def __init__(self, vcpus: list[int], others: list[int]) -> None:
        self.vcpus = vcpus
        self.others = others
        self.asked: list[str] = []
        self.speechless = False

    def answer(self, command: str) -> Any:
        self.asked.append(command)
        if command == "qmp_capabilities":
            return {"return": {}}
        if command == "query-cpus-fast" and self.asked[-2:-1] == ["qmp_capabilities"]:
            return {"return": [{"thread-id": task, "props": {"core-id": index, "thread-id": 0, "socket-id": 0},
                                "qom-path": f"/machine/unattached/device[{index}]", "cpu-index": index,
                                "target": "x86_64"} for index, task in enumerate(self.vcpus)]}
        return {"error": {"class": "CommandNotFound", "desc": f"The command {command} has not been found"}}

    def affinity(self) -> tuple[list[set[int]], list[set[int]]]:
        """CPUs of the vCPUs, and of the other threads."""
        return [os.sched_getaffinity(task) for task in self.vcpus], [os.sched_getaffinity(task) for task in self.others]


@contextmanager
def qemu(path: Path, vcpus: int, others: int = 1) -> Iterator[Qemu]:
    tasks = [subprocess.Popen(["sleep", "60"]) for _ in range(vcpus + others)]
    ids = [task.pid for task in tasks]
    told = Qemu(ids[:vcpus], ids[vcpus:])
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(path))
        server.listen(1)
        threading.Thread(target=_serve, args=(server, told), daemon=True).start()
        try:
            yield told
        finally:
            server.shutdown(socket.SHUT_RDWR)
            for task in tasks:
                task.kill()
                task.wait()


def _serve(server: socket.socket, told: Qemu) -> None:
    """One client at a time, as QEMU's chardev."""
    while True:
        try:
            client = server.accept()[0]
        except OSError:
            return
        with client, client.makefile("rwb") as stream:
            if told.speechless:
                stream.readline()
                continue
            _say(stream, GREETING)
            while line := stream.readline():
                _say(stream, EVENT, told.answer(json.loads(line)["execute"]))


def _say(stream: Any, *messages: Any) -> None:
    stream.write(b"".join(json.dumps(message).encode() + b"\r\n" for message in messages))
    stream.flush()
