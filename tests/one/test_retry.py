"""The BOOT_FAILURE hook against a running XML-RPC server."""
from __future__ import annotations

import base64

import pytest

from kvm_gpu.errors import HostError, RequestError
from one_gpu_driver import retry
from one_gpu_driver.cloud import open_cloud
from tests.one.oned import vm

REFUSED = "Mon Nov 30 09:38:34 2026: DEPLOY: no GPU free for 1 x A16-4Q on this host"
MIGRATED = 48       # POFF_MIGRATE_ACTION
RUNNING = 3


def message(number):
    return base64.b64encode(f"<VM>\n  <ID>{number}</ID>\n  <NAME>x</NAME></VM>".encode())


def tried(oned, *told):
    """What the hook says of VM 42, which oned describes in this order; and what it did."""
    oned.vms[42] = list(told)
    waited = []
    said = retry.retry(open_cloud(), message(42), waited.append)
    return said, waited, [call for call in oned.calls if call[0] == "one.vm.recover"]


def test_a_refused_start_is_scheduled_again(oned):
    assert tried(oned, vm(42, REFUSED)) == (
        "VM 42: scheduled again, 1 of 3", [retry.WAIT_S], [("one.vm.recover", 42, 4)])


def test_the_third_time(oned):
    assert tried(oned, vm(42, REFUSED, (14, 14))) == (
        "VM 42: scheduled again, 3 of 3", [retry.WAIT_S], [("one.vm.recover", 42, 4)])


@pytest.mark.parametrize(("seen", "said"), [
    (vm(42, REFUSED, (14, 14, 14)), "VM 42: was scheduled again 3 times"),
    (vm(42, "DEPLOY: qemu is not there"), "VM 42: its start failed for another reason"),
    (vm(42, REFUSED, (MIGRATED,)), "VM 42: it may have run before: its disks are not thrown away"),
    (vm(42, REFUSED, (14, MIGRATED)), "VM 42: it may have run before: its disks are not thrown away"),
    (vm(42, REFUSED, lcm_state=RUNNING), "VM 42: its start has not failed"),
    (vm(42, REFUSED, state=6), "VM 42: its start has not failed"),
])
def test_a_vm_that_is_left_as_it_is(oned, seen, said):
    assert tried(oned, seen) == (said, [], [])


@pytest.mark.parametrize("later", [
    pytest.param(vm(42, REFUSED, lcm_state=RUNNING), id="started by hand"),
    pytest.param(vm(42, REFUSED, (14,)), id="recreated by hand, and refused again"),
    pytest.param(vm(42, REFUSED, state=6), id="deleted"),
])
def test_a_vm_that_somebody_takes_care_of_meanwhile(oned, later):
    assert tried(oned, vm(42, REFUSED), later) == ("VM 42: somebody else went on with it", [retry.WAIT_S], [])


def test_a_vm_that_is_gone(oned):
    with pytest.raises(HostError) as failure:
        retry.retry(open_cloud(), message(43))
    assert failure.value.message.endswith("one.vm.info: [one.vm.info] Error getting virtual machine [43].")


@pytest.mark.parametrize("text", [b"", b"****", base64.b64encode(b"<VM><NAME>7</NAME></VM>"),
                                  base64.b64encode(b"<VM><ID>seven</ID></VM>"), base64.b64encode(b"<VM><ID>7")])
def test_stdin_that_is_not_from_oned(text):
    with pytest.raises(RequestError):
        retry.vm_number(text)


def test_the_hook_is_made_once_and_taken_away(oned, one_gpu, tmp_path):
    from tests.one import frontend
    root = str(frontend.make(tmp_path / "root"))
    assert "hook 3: kvm-gpu-retry\n" in one_gpu("install", "--with-retry-hook", "--root", root).out
    [allocated] = [call[1] for call in oned.calls if call[0] == "one.hook.allocate"]
    assert allocated == (
        'NAME = "kvm-gpu-retry"\nTYPE = "state"\nRESOURCE = "VM"\nON = "CUSTOM"\nSTATE = "ACTIVE"\n'
        'LCM_STATE = "BOOT_FAILURE"\nCOMMAND = "/var/lib/one/remotes/hooks/kvm-gpu/retry"\n'
        'ARGUMENTS = "$TEMPLATE"\nARGUMENTS_STDIN = "yes"\n')
    oned.hooks = {"kvm-gpu-retry": 3}
    assert one_gpu("install", "--with-retry-hook", "--root", root) == (0, "Nothing to do.\n", "")
    assert "remove hook 3: kvm-gpu-retry\n" in one_gpu("uninstall", "--with-retry-hook", "--root", root).out
    assert [call for call in oned.calls if call[0].startswith("one.hook.")] == [
        ("one.hook.allocate", allocated), ("one.hook.delete", 3)]
