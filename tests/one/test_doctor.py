"""one-gpu doctor: front-end, host, and cloud."""
from __future__ import annotations

import os

import pytest

from kvm_gpu.errors import HostError
from kvm_gpu.inventory import read_host
from kvm_gpu.model import Function
from one_gpu_driver import doctor, pciconf
from one_gpu_driver.doctor import Finding
from tests.fakekernel import hosts
from tests.fakekernel.fakesysfs import FakeSysfs
from tests.one import frontend
from tests.one.oned import gpus, host
from tests.sites import tables

CARD = Function("0000:3b:00.0", "10de:1e30", 0x030000, None, None)
SOUND = Function("0000:3b:00.1", "10de:10f7", 0x040300, None, None)
VF = Function("0001:3b:00.4", "10de:25b6", 0x030200, None, None)
SYNC = "as oneadmin: onehost sync --force"
PACKAGE = "install the package opennebula-gpu-driver"


# ---- the front-end ---------------------------------------------------------------------------------

def test_a_front_end_before_and_after_install(tmp_path, one_gpu):
    root = str(frontend.make(tmp_path))
    names = ", ".join(sorted([*frontend.PROGRAMS, "kvm-gpu.sh", "oned.conf", "retry"]))
    assert one_gpu("doctor", "--offline", "--root", root) == (
        4, f"front-end: not installed, or OpenNebula was upgraded: {names}\n    one-gpu install\n", "")
    assert one_gpu("install", "--root", root).code == 0
    assert one_gpu("doctor", "--offline", "--root", root) == (0, "Nothing is wrong.\n", "")


def test_a_front_end_that_was_upgraded(tmp_path, one_gpu):
    root = frontend.make(tmp_path)
    one_gpu("install", "--root", str(root))
    stock = root / "var/lib/one/remotes/vmm/kvm"
    (stock / "exec").rename(stock / "execute")
    assert one_gpu("doctor", "--offline", "--root", str(root)) == (
        4, "front-end: not installed, or OpenNebula was upgraded: exec, execute\n    one-gpu install\n", "")


def test_neither_front_end_nor_host(tmp_path, one_gpu):
    assert one_gpu("doctor", "--offline", "--root", str(tmp_path)) == (
        4, "here: neither an OpenNebula front-end nor a KVM host of one\n", "")


# ---- a host ----------------------------------------------------------------------------------------

@pytest.fixture
def machine(tmp_path):
    """fake("a16-vfio"): its kernel files and boards."""
    def fake(name):
        kernel = hosts.load(name)
        sysfs = FakeSysfs(kernel, str(tmp_path))
        return sysfs, read_host(sysfs, (), tables(kernel, tmp_path)).boards
    return fake


@pytest.fixture
def healthy(tmp_path):
    """A host as the package, the administrator and onehost sync leave it."""
    for name in doctor.PROGRAMS:
        _write(tmp_path / name, "")
        (tmp_path / name).chmod(0o755)
    _write(tmp_path / doctor.SUDOERS, "")
    _write(tmp_path / "var/tmp/one/vmm/kvm-gpu/deploy", "")
    _write(tmp_path / "var/tmp/one/etc/im/kvm-probes.d/pci.conf", frontend.PCI_CONF)
    timer = tmp_path / doctor.TIMER
    timer.parent.mkdir(parents=True)
    timer.symlink_to("/usr/lib/systemd/system/kvm-gpu-reconcile.timer")
    return tmp_path


def _write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_a_healthy_host(healthy, machine):
    assert list(doctor.host(healthy, *machine("rtx6000x4"))) == []


@pytest.mark.parametrize(("missing", "finding"), [
    (doctor.PROGRAMS[0], Finding(
        "this host", "/usr/libexec/kvm-gpu/one-vmm is not there: GPU VMs start without their GPU", PACKAGE)),
    (doctor.PROGRAMS[1], Finding(
        "this host", "/usr/libexec/kvm-gpu/one-helper is not there: GPU VMs start without their GPU", PACKAGE)),
    (doctor.SUDOERS, Finding(
        "this host", f"/{doctor.SUDOERS} is not there: oneadmin may not run one-helper", PACKAGE)),
    (doctor.TIMER, Finding(
        "this host", "GPUs of guests that turn themselves off are not freed until somebody needs them",
        "systemctl enable --now kvm-gpu-reconcile.timer")),
    ("var/tmp/one/vmm/kvm-gpu/deploy", Finding(
        "this host", "/var/tmp/one/vmm/kvm-gpu is not there: no VM can start", SYNC)),
])
def test_a_host_with_something_missing(healthy, machine, missing, finding):
    os.unlink(healthy / missing)
    assert list(doctor.host(healthy, *machine("rtx6000x4"))) == [finding]


@pytest.mark.parametrize(("conf", "rule", "found"), [
    ("#dynamic_ownership = 1\n", "", False),
    ('user = "oneadmin"\ndynamic_ownership = 0\n', 'KERNEL=="vfio", MODE="0666"\n', True),
    ('user = "oneadmin"\ndynamic_ownership = 0\n', 'SUBSYSTEM=="vfio", OWNER="oneadmin"\n', False),
], ids=["libvirt gives it away", "nobody does", "udev does"])
def test_a_gpu_that_qemu_may_not_open(healthy, machine, conf, rule, found):
    _write(healthy / doctor.QEMU_CONF, conf)
    _write(healthy / "etc/udev/rules.d/99-vfio.rules", rule)
    assert list(doctor.host(healthy, *machine("rtx6000x4"))) == [Finding(
        "this host", "/etc/libvirt/qemu.conf has dynamic_ownership = 0, and no udev rule is for /dev/vfio: QEMU may "
        "not open its GPU", 'add the rule SUBSYSTEM=="vfio", OWNER="oneadmin", GROUP="kvm"')][:found]


@pytest.mark.parametrize(("name", "conf", "both"), [
    ("rtx6000x4", ":filter:\n  - '10de:*:0300'\n:short_address:\n  - '5e:00.0'\n  - '3b:00.0'\n",
     "0000:3b:00.0, 0000:5e:00.0"),
    pytest.param("a16-vfio", ":filter: '10de:*'\n:short_address: ['25:00.4', '27:00.5']\n",
                 "0000:25:00.0, 0000:27:00.0", id="by their VFs"),
    pytest.param("a16-vfio", ":filter: '10de:*'\n:short_address: ['25:00.0']\n", None, id="oned passes over such a PF"),
    pytest.param("rtx6000x4", ":filter: '102b:*'\n", None, id="the console's card, which we do not give"),
])
def test_cards_with_two_masters(healthy, machine, name, conf, both):
    _write(healthy / "var/tmp/one/etc/im/kvm-probes.d/pci.conf", conf)
    assert list(doctor.host(healthy, *machine(name))) == [Finding(
        "this host", f"{both}: given out by us, and listed by oned as PCI devices",
        "narrow :filter: in var/lib/one/remotes/etc/im/kvm-probes.d/pci.conf on the front-end, or `devices` in "
        "/etc/kvm-gpu/config.toml here")][:both is not None]


# ---- pci.conf --------------------------------------------------------------------------------------

@pytest.mark.parametrize(("filters", "listed"), [
    ("'0:0'", ()),
    ("'*:*'", (CARD, SOUND, VF)),
    ("'10de:*'", (CARD, SOUND, VF)),
    ("'10de:'", (CARD, SOUND, VF)),
    ("'1002:*'", ()),
    ("'10de:1E30'", (CARD,)),
    ("'10de:*:0302'", (VF,)),
    ("'::0403'", (SOUND,)),
    ("'10de:1e30:0300:01'", ()),
    ("'10de:1e30, 10de:25b6'", (CARD, VF)),
    ("['10de:1e30', '10de:10f7']     # two", (CARD, SOUND)),
    ("\n  - '10de:1e30'\n  - \"10de:25b6\"", (CARD, VF)),
    ("'10de:*'\n:short_address:\n  - '3b:00.1'", (SOUND,)),
    ("'10de:*'\n:short_address: ['0001:3b:00.4']", (VF,)),
])
def test_what_pci_conf_lists(tmp_path, filters, listed):
    _write(tmp_path / "pci.conf", f"---\n# a comment\n:filter: {filters}\n")
    listing = pciconf.read(tmp_path / "pci.conf")
    assert tuple(function for function in (CARD, SOUND, VF) if listing.lists(function)) == listed


@pytest.mark.parametrize(("text", "message"), [
    (":filter: '0:0'\nfilter = x\n", ":2: not understood: filter = x"),
    ("- '10de:*'\n", ":1: not understood: - '10de:*'"),
    (":filter: 'nvidia:*'\n", ": filter 'nvidia:*' is not vendor:device:class"),
])
def test_a_pci_conf_that_we_do_not_understand(tmp_path, text, message):
    _write(tmp_path / "pci.conf", text)
    with pytest.raises(HostError) as failure:
        pciconf.read(tmp_path / "pci.conf")
    assert failure.value.message == f"{tmp_path}/pci.conf{message}"


# ---- the cloud -------------------------------------------------------------------------------------

def test_a_healthy_cloud(oned, one_gpu, tmp_path):
    root = str(frontend.make(tmp_path / "root"))
    one_gpu("install", "--root", root)
    oned.hosts = [host("node1", gpus(boards="0000:3b:00.0"), pci=("0000:af:00:0",))]
    oned.hooks = {"kvm-gpu-retry": 3}
    assert one_gpu("doctor", "--root", root) == (0, "Nothing is wrong.\n", "")


def test_a_cloud_with_troubles(oned, one_gpu, tmp_path):
    root = str(frontend.make(tmp_path / "root"))
    one_gpu("install", "--root", root)
    oned.hosts = [host("node1"),
                  host("node2", gpus(boards="0000:3b:00.0 0000:3d:00.0", trouble="it burns")),
                  host("node3", gpus(boards="0000:3b:00.0"), pci=("0000:3b:00:4", "0000:af:00:0"))]
    assert one_gpu("doctor", "--root", root) == (4, (
        f"node1: its probe says nothing of GPUs\n    {SYNC}; {PACKAGE} there if it has GPUs\n"
        "node2: it burns\n    kvm-gpu inventory on that host\n"
        "node3: oned lists PCI devices beside GPUs that we give out: 0000:3b:00.4\n    one-gpu doctor on that host\n"
        "front-end: a VM that is refused for want of a GPU stays in BOOT_FAILURE\n"
        "    one-gpu install --with-retry-hook, or onevm recover --recreate by hand\n"), "")
