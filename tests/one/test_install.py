"""one-gpu install and uninstall, run on a prepared tree as an administrator runs them."""
from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from kvm_gpu.errors import HostError
from one_gpu_driver import onedconf
from one_gpu_driver.vmm import ACTIONS
from tests.one import frontend

HERE = Path(__file__).parents[2]
OURS = "var/lib/one/remotes/vmm/kvm-gpu"
CONF = "etc/one/oned.conf"
PROBE = "var/lib/one/remotes/im/kvm-probes.d/host/system/kvm-gpu.sh"


@pytest.fixture
def root(tmp_path):
    return frontend.make(tmp_path)


def one_gpu(root, *argv):
    """(exit code, stdout, stderr) of the command."""
    command = ["/usr/bin/python3", HERE / "bin/one-gpu", *argv, "--root", root]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout, done.stderr


def install(root):
    code, out, err = one_gpu(root, "install")
    assert (code, err) == (0, "")
    return out


def test_install_shows_what_it_changes(root):
    lines = install(root).splitlines()
    made = [f"create /{OURS}/{name}" for name in sorted(frontend.PROGRAMS)]
    assert lines == [*made, f"create /{PROBE}",
                     "create /var/lib/one/remotes/hooks/kvm-gpu/retry",
                     f"keep a copy of /{CONF} as oned.conf.before-kvm-gpu",
                     f"change /{CONF}",
                     '    -    ARGUMENTS      = "-t 15 -r 0 kvm -p",',
                     '    +    ARGUMENTS      = "-t 15 -r 0 kvm-gpu -p",',
                     "Now, as oneadmin: onehost sync --force", "Then, as root: systemctl restart opennebula"]


def test_install_changes_one_word_of_oneds_own_files(root):
    before = frontend.tree(root)
    install(root)
    after = frontend.tree(root)
    assert {name for name in before if before[name] != after[name]} == {CONF}
    assert after[CONF].content == before[CONF].content.replace(b"0 kvm -p", b"0 kvm-gpu -p")
    assert after[CONF].mode == before[CONF].mode
    assert after[CONF + ".before-kvm-gpu"] == before[CONF]


def test_install_and_uninstall_leave_the_tree_as_it_was(root):
    before = frontend.tree(root)
    install(root)
    code, out, err = one_gpu(root, "uninstall")
    assert (code, err, out.splitlines()[0]) == (0, "", f"put back /{CONF} from oned.conf.before-kvm-gpu")
    assert frontend.tree(root) == before


def test_install_tells_of_pci_devices_that_oned_lists(root):
    conf = root / "var/lib/one/remotes/etc/im/kvm-probes.d/pci.conf"
    conf.write_text(frontend.PCI_CONF.replace("'0:0'", "'10de:*'"))
    told = "oned lists PCI devices: 10de:*. No host may give these out by GPU: one-gpu doctor there"
    assert install(root).splitlines()[-3:-2] == [told]
    assert install(root) == f"Nothing to do.\n{told}\n"


def test_bytes_of_oned_conf_that_are_no_utf8_stay(root):
    conf = root / CONF
    before = frontend.ONED_CONF.replace("\n", "\r\n").encode() + b"# caf\xe9"
    conf.write_bytes(before)
    install(root)
    assert conf.read_bytes() == before.replace(b"0 kvm -p", b"0 kvm-gpu -p")


def test_a_second_install_and_a_second_uninstall_do_nothing(root):
    before = frontend.tree(root)
    assert one_gpu(root, "uninstall") == (0, "Nothing to do.\n", "")
    assert frontend.tree(root) == before
    install(root)
    installed = frontend.tree(root)
    assert one_gpu(root, "install") == (0, "Nothing to do.\n", "")
    assert frontend.tree(root) == installed


def test_a_dry_run_changes_nothing(root):
    before = frontend.tree(root)
    code, out, err = one_gpu(root, "install", "--dry-run")
    assert (code, err, frontend.tree(root)) == (0, "", before)
    assert out == install(root)


def test_uninstall_keeps_what_was_changed_in_oned_conf_since(root):
    install(root)
    conf = root / CONF
    conf.write_text(conf.read_text().replace("DEBUG_LEVEL = 3", "DEBUG_LEVEL = 5"))
    assert one_gpu(root, "uninstall")[0] == 0
    assert conf.read_text() == frontend.ONED_CONF.replace("DEBUG_LEVEL = 3", "DEBUG_LEVEL = 5")
    assert not (root / (CONF + ".before-kvm-gpu")).exists()


def test_uninstall_has_oned_restarted_before_the_hosts_lose_the_folder(root):
    install(root)
    assert one_gpu(root, "uninstall")[1].splitlines()[-2:] == [
        "Now, as root: systemctl restart opennebula", "Then, as oneadmin: onehost sync --force"]


def test_uninstall_keeps_what_others_put_into_our_folder(root):
    install(root)
    theirs = root / OURS / "deploy.mine"
    theirs.write_text("#!/bin/sh\n")
    assert one_gpu(root, "uninstall")[0] == 0
    assert list((root / OURS).iterdir()) == [theirs]


def test_install_after_an_upgrade_follows_the_stock_folder(root):
    install(root)
    stock = root / "var/lib/one/remotes/vmm/kvm"
    (stock / "vgpu").unlink()
    (stock / "exec").rename(stock / "execute")
    out = install(root).splitlines()
    assert out == [f"create /{OURS}/execute", f"remove /{OURS}/exec", f"remove /{OURS}/vgpu",
                   "Now, as oneadmin: onehost sync --force"]


def test_install_after_an_upgrade_that_took_oned_conf_back(root):
    install(root)
    (root / CONF).write_text(frontend.ONED_CONF)
    assert install(root).splitlines()[:2] == [f"keep a copy of /{CONF} as oned.conf.before-kvm-gpu", f"change /{CONF}"]


def run(root, name, *argv, stdin=""):
    """(exit code, stdout, stderr) of an installed script on a host whose /usr/libexec is below `root`."""
    script = root / name
    elsewhere = script.with_name("elsewhere")
    elsewhere.write_text(script.read_text().replace("/usr/libexec", f"{root}/usr/libexec"))
    elsewhere.chmod(0o755)
    done = subprocess.run([elsewhere, *argv], capture_output=True, text=True, check=False, input=stdin)
    return done.returncode, done.stdout, done.stderr


def have_package(root, name, text):
    program = root / "usr/libexec/kvm-gpu" / name
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\n{text}\n")
    program.chmod(0o755)
    return program


def test_without_our_package_every_script_is_the_stock_one(root):
    install(root)
    said = {name: run(root, f"{OURS}/{name}", "a b", "c") for name in frontend.PROGRAMS}
    assert said == {name: (0, f"stock {name} a b c\n", "") for name in frontend.PROGRAMS}


def test_with_our_package_the_actions_that_we_take_part_in_are_ours(root):
    install(root)
    have_package(root, "one-vmm", 'echo "ours:" "$@"; cat; exit 3')
    ours = {name for name in frontend.PROGRAMS if run(root, f"{OURS}/{name}")[1].startswith("ours:")}
    assert ours == set(ACTIONS)
    assert run(root, f"{OURS}/deploy", "a b", "c", stdin="<domain/>") == (
        3, f"ours: deploy {root}/{OURS}/../kvm/deploy a b c\n<domain/>", "")


def test_the_probe_succeeds_without_our_package(root):
    install(root)
    assert run(root, PROBE, "kvm") == (0, "", "")


def test_the_probe_succeeds_where_the_helper_fails(root, monkeypatch):
    install(root)
    have_package(root, "one-helper", "exit 1")
    monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
    sudo = root / "bin/sudo"
    sudo.parent.mkdir()
    sudo.write_text('#!/bin/sh\nprintf "%s\\n" "$*"\nshift\nexec "$@"\n')
    sudo.chmod(0o755)
    assert run(root, PROBE, "kvm") == (0, f"-n {root}/usr/libexec/kvm-gpu/one-helper probe\n", "")


def test_install_elsewhere_than_on_a_front_end(tmp_path):
    code, out, err = one_gpu(tmp_path, "install")
    assert (code, out) == (4, "")
    assert err == (f"one-gpu: {tmp_path}/var/lib/one/remotes/vmm/kvm, {tmp_path}/etc/one/oned.conf: not there\n"
                   "Hint: run it on the OpenNebula front-end\n")


@pytest.mark.parametrize(("name", "arguments", "changed"), [
    ("stock", "-t 15 -r 0 kvm -p", "-t 15 -r 0 kvm-gpu -p"),
    ("folder last", "-p -t 15 kvm", "-p -t 15 kvm-gpu"),
    ("value like the folder", "-s kvm -l migrate=migrate_local kvm", "-s kvm -l migrate=migrate_local kvm-gpu"),
    ("long options", "--threads=15 --shell kvm kvm", "--threads=15 --shell kvm kvm-gpu"),
])
def test_the_folder_is_the_word_that_is_no_option(name, arguments, changed):
    conf = frontend.ONED_CONF.replace("-t 15 -r 0 kvm -p", arguments)
    assert onedconf.folder(conf) == "kvm"
    assert onedconf.with_folder(conf, "kvm-gpu") == conf.replace(arguments, changed, 1)


def test_a_driver_on_one_line():
    conf = 'VM_MAD = [ NAME = "kvm", ARGUMENTS = "-t 15 kvm -p", TYPE = "kvm" ]\n'
    assert onedconf.with_folder(conf, "kvm-gpu") == conf.replace("15 kvm", "15 kvm-gpu")


@pytest.mark.parametrize(("conf", "message"), [
    ("", 'oned.conf: 0 VM_MAD with NAME = "kvm", expected one'),
    (frontend.ONED_CONF * 2, 'oned.conf: 2 VM_MAD with NAME = "kvm", expected one'),
    ('VM_MAD = [\nNAME = "kvm",\nARGUMENTS = "-t 15"\n]',
     "oned.conf: 0 driver folders in the ARGUMENTS of the VM_MAD kvm, expected one"),
    ('VM_MAD = [\nNAME = "kvm",\nTYPE = "kvm"\n]',
     "oned.conf: 0 driver folders in the ARGUMENTS of the VM_MAD kvm, expected one"),
    ('VM_MAD = [\nNAME = "kvm",\nARGUMENTS = "-p kvm other"\n]',
     "oned.conf: 2 driver folders in the ARGUMENTS of the VM_MAD kvm, expected one"),
])
def test_an_oned_conf_that_we_do_not_understand_is_left_alone(conf, message):
    with pytest.raises(HostError) as failure:
        onedconf.with_folder(conf, "kvm-gpu")
    assert failure.value.message == message


def test_another_vendors_driver_folder_is_left_alone(root):
    conf = root / CONF
    conf.write_text(frontend.ONED_CONF.replace("kvm -p", "theirs -p"))
    before = frontend.tree(root)
    code, out, err = one_gpu(root, "install")
    assert (code, out) == (4, "")
    assert err == f"one-gpu: {conf}: the VM_MAD kvm uses the driver folder theirs\nHint: set it back to kvm first\n"
    assert frontend.tree(root) == before
