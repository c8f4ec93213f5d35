"""What an injection makes is valid by libvirt's own schema, and its parser takes it and gives it back."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from lxml import etree

from kvm_gpu.domain import inject, read, remove
from tests.domains import OPENNEBULA, PLACEMENTS, SAMPLES

SCHEMA = Path("/usr/share/libvirt/schemas/domain.rng")


def needed(there, what):
    """A user's machine may lack libvirt; continuous integration may not."""
    if not there and not os.environ.get("CI"):
        pytest.skip(f"{what} is not installed: install libvirt0 and libvirt-clients to run this test")
    assert there, f"{what} is not installed"


@pytest.fixture(scope="module")
def schema():
    needed(SCHEMA.exists(), str(SCHEMA))
    return etree.RelaxNG(etree.parse(SCHEMA))


@pytest.fixture(scope="module")
def virsh():
    needed(shutil.which("virsh"), "virsh")
    return lambda *commands: subprocess.run(["virsh", "-c", "test:///default", "; ".join(commands)], check=True,
                                            capture_output=True, timeout=60).stdout


def merged(xml):
    """The document with one <devices>: libvirt's parser takes two, as OpenNebula writes them, its schema does not."""
    tree = etree.fromstring(xml)
    first, *others = tree.findall("devices")
    for other in others:
        first.extend(other)
        tree.remove(other)
    return tree


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("sample", SAMPLES)
def test_valid_by_the_schema(schema, sample, placement):
    schema.assertValid(merged(inject(SAMPLES[sample], PLACEMENTS[placement], "c-1")))


@pytest.mark.parametrize("sample", SAMPLES)
def test_accepted_by_the_parser(virsh, tmp_path, sample):
    commands = []
    for name, placement in PLACEMENTS.items():
        (tmp_path / f"{name}.xml").write_bytes(inject(SAMPLES[sample], placement, "c-1"))
        commands.append(f"define {tmp_path}/{name}.xml" + (" --validate" if valid(sample) else ""))
    said = virsh(*commands).decode().split("\n")
    assert [line for line in said if line] == [
        f"Domain '{read(SAMPLES[sample]).name}' defined from {tmp_path}/{name}.xml" for name in PLACEMENTS]


def valid(sample):
    return sample not in OPENNEBULA and not sample.startswith("cdata")


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_known_again_after_libvirt_has_rewritten_it(virsh, tmp_path, placement):
    for sample in ("01-plain", "cells", "pc", "q35-uefi"):
        before, file = read(SAMPLES[sample]), tmp_path / "domain.xml"
        file.write_bytes(inject(SAMPLES[sample], PLACEMENTS[placement], "c-1"))
        rewritten = virsh(f"define {file}", f"dumpxml {before.name} --inactive").partition(b"\n\n")[2].strip()
        assert read(rewritten) == before._replace(claim="c-1")
        assert b"kvm-gpu" not in remove(rewritten)
        again = inject(rewritten, PLACEMENTS[placement], "c-1")
        assert inject(again, PLACEMENTS[placement], "c-1") == again
        assert guest_addresses(again) == guest_addresses(file.read_bytes())


def guest_addresses(xml):
    return [sorted(hostdev.find("address").attrib.items()) for hostdev in etree.fromstring(xml).iter("hostdev")
            if hostdev.find("alias") is not None and hostdev.find("alias").get("name").startswith("ua-kvm-gpu-")]
