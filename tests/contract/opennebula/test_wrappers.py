"""The scripts that oned's driver folder has for us, run where the stock folder is beside it."""
from __future__ import annotations

import subprocess

import pytest

from one_gpu_driver import shims
from tests.contract.opennebula.remote import VMM, Remote, captured, states

INSTALLED = "/usr/libexec/kvm-gpu/one-vmm"
GPU = captured("01-deploy-plain").asking("<GPU><PROFILE><![CDATA[A16-4Q]]></PROFILE></GPU>")


@pytest.mark.parametrize(("driver", "held"), [(str(VMM), [("one-0", "starting", ["0000:25:00.4"])]), ("/nowhere", [])],
                         ids=["with our package", "without it"])
def test_the_wrapper_of_deploy(remote: Remote, driver: str, held: list[tuple[str, str, list[str]]]) -> None:
    """A host without our package starts the VM as it always did."""
    assert remote.run(GPU._replace(vm_xml=b"")) == (0, "", "")     # the stock script is there now
    folder = remote.stock.parent / "kvm-gpu"
    folder.mkdir()
    script = folder / "deploy"
    script.write_text(shims.scripts(remote.stock)["deploy"].replace(INSTALLED, driver))
    script.chmod(0o755)
    (remote.folder(GPU) / "vm.xml").write_bytes(GPU.vm_xml)
    argv = [str(remote.folder(GPU) / "deployment.0"), *GPU.argv[1:]]
    done = subprocess.run([script, *argv], input=GPU.stdin, env=remote.environ, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr, states(remote.host)) == (0, b"", b"", held)
    assert (remote.records / "argv").read_text().splitlines() == [f"{folder}/../kvm/deploy", *argv]
    assert ((remote.records / "stdin").read_bytes() == GPU.stdin) == (held == [])
