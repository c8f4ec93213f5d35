"""The hook is killed at each of its steps: what is left is freed once its worker is gone, and the VM starts again."""
from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.contract.host import answer
from tests.contract.proxmox.node import Given, Node, states

Up = Callable[[str], Node]

SCRIPT = ("/usr/bin/python3", "-IS", str(Path(__file__).with_name("interrupted.py")))
VF = "0000:25:00.4"


def killed(node: Node, phase: str, step: int) -> bool:
    """Whether there was such a step. The worker ends with the hook."""
    shell = f'{" ".join(SCRIPT)} {step} "$2" "$3"; exit $?'
    return answer(node.begin(104, phase, worker=("sh", "-c", shell, "sh"))).code != 0


def ready(up: Up) -> Node:
    node = up("a16-vfio")
    node.mapping("gpu-a16-4q", VF, "0000:26:00.4")
    node.vm(104, "cores: 2\nmemory: 4096\nhostpci0: mapping=gpu-a16-4q,mdev=nvidia-713\n")
    return node


def test_pre_start(up: Up) -> None:
    node = ready(up)
    before = node.kernel.snapshot()
    steps = 0
    while killed(node, "pre-start", steps):
        node.cleanup(104)
        node.host.json("reconcile")
        assert (states(node), node.kernel.snapshot()) == ([], before), steps
        assert node.hook(104, "pre-start").code == 0
        assert node.choose(104) == [Given((VF,))], steps
        node.cleanup(104)
        node.hook(104, "post-stop")
        assert (states(node), node.kernel.snapshot(), node.dropin(104), node.book()) == ([], before, {}, []), steps
        steps += 1
    assert steps > 10


def test_post_start_and_post_stop(up: Up) -> None:
    node = ready(up)
    before = node.kernel.snapshot()
    for phase in ("post-start", "post-stop"):
        steps = 0
        while True:
            assert node.hook(104, "pre-start").code == 0
            node.run(104, node.choose(104))
            if phase == "post-stop":
                node.hook(104, "post-start")
                node.kernel.vm_stop("104")
                node.cleanup(104)
            more = killed(node, phase, steps)
            if phase == "post-start":
                assert states(node) in ([("104", "starting", [VF])], [("104", "active", [VF])])
                node.kernel.vm_stop("104")
                node.cleanup(104)
                node.hook(104, "post-stop")
            node.host.json("reconcile")
            assert (states(node), node.kernel.snapshot()) == ([], before), (phase, steps)
            if not more:
                break
            steps += 1
        assert steps > 4, phase
