"""Domain XML as a VM's owner may write it against us."""
import time

import pytest

from kvm_gpu.domain import inject, read, remove
from kvm_gpu.errors import RequestError
from kvm_gpu.model import Placement
from tests.domains import PINNED, SAMPLES, VF

PLACEMENT = Placement((VF,), (PINNED,), (12,), "strict")


def domain(inside, memory=b"<memory>1</memory>"):
    return b"<domain><name>a</name>%s%s</domain>" % (memory, inside)


REFUSED = {
    "nothing": (b"", "not UTF-8 text that begins with an element"),
    "text": (b"hello", "not UTF-8 text that begins with an element"),
    "UTF-16": ("<domain/>".encode("utf-16"), "not UTF-8 text that begins with an element"),
    "UTF-16 without a mark": ("<domain/>".encode("utf-16-le"), "not UTF-8 text that begins with an element"),
    "byte order mark": (b"\xef\xbb\xbf" + domain(b""), "not UTF-8 text that begins with an element"),
    "NUL": (domain(b"\0"), "not UTF-8 text that begins with an element"),
    "encoding": (b"<?xml version='1.0' encoding='ISO-8859-1'?>" + domain(b""),
                 "encoding 'ISO-8859-1', only UTF-8 is read"),
    "bad UTF-8": (domain(b"\xff"), "not well-formed (invalid token): line 1, column 40"),
    "not closed": (b"<domain>", "no element found: line 1, column 8"),
    "two roots": (b"<domain/><domain/>", "junk after document element: line 1, column 9"),
    "prefix": (domain(b"<x:y/>"), "unbound prefix: line 1, column 40"),
    "doctype": (b"<!DOCTYPE domain>" + domain(b""), "has a DOCTYPE"),
    "entity": (b"<!DOCTYPE d [<!ENTITY a 'b'>]><domain>&a;</domain>", "has a DOCTYPE"),
    "undefined entity": (domain(b"&a;"), "undefined entity: line 1, column 40"),
    "size": (domain(b" " * (1 << 20)), "1048625 bytes, at most 1048576 are read"),
    "depth": (domain(b"<a>" * 32 + b"</a>" * 32), "over 32 levels or 16384 elements"),
    "elements": (domain(b"<a/>" * 16384), "over 32 levels or 16384 elements"),
    "another document": (b"<pool/>", "begins with <pool>"),
    "a namespace": (b"<domain xmlns='urn:x'/>", "begins with <urn:x domain>"),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("function", [read, remove, lambda xml: inject(xml, PLACEMENT, "c-1")],
                         ids=["read", "remove", "inject"])
def test_refused_documents(function, case):
    xml, message = REFUSED[case]
    with pytest.raises(RequestError) as refused:
        function(xml)
    assert refused.value.message == f"domain XML: {message}"


HOSTDEV = b"<devices><hostdev type='pci'>%s</hostdev></devices>"
ABSURD = {
    "no name": (b"<domain><memory>1</memory></domain>", "name: ''"),
    "line in name": (b"<domain><name>a\nb</name></domain>", "name: 'a\\nb'"),
    "element in name": (b"<domain><name>a<b/></name></domain>", "<name> has elements inside"),
    "uuid": (domain(b"<uuid>00000000-0000-4000-8000-00000000000g</uuid>"),
             "uuid: '00000000-0000-4000-8000-00000000000g'"),
    "no memory": (domain(b"", b""), "memory: ''"),
    "memory": (domain(b"", b"<memory>%s</memory>" % (b"9" * 31)), f"memory: {'9' * 31!r}"),
    "memory of many EiB": (domain(b"", b"<memory unit='EiB'>1000000</memory>"), "memory: '1000000'"),
    "unit": (domain(b"", b"<memory unit='QiB'>1</memory>"), "unit of memory: 'QiB'"),
    "vcpu": (domain(b"<vcpu>1000000000</vcpu>"), "vcpu: '1000000000'"),
    "no vcpu": (domain(b"<vcpu>0</vcpu>"), "vcpu: '0'"),
    "negative vcpu": (domain(b"<vcpu>-1</vcpu>"), "vcpu: '-1'"),
    "digits of Python": (domain(b"<vcpu>1_0</vcpu>"), "vcpu: '1_0'"),
    "other digits": (domain("<vcpu>\u0664</vcpu>".encode()), "vcpu: '\u0664'"),
    "cpuset": (domain(b"<vcpu cpuset='0-4294967295'>1</vcpu>"), "cpuset of vcpu: '4294967295'"),
    "backwards": (domain(b"<vcpu cpuset='3-2'>1</vcpu>"), "cpuset of vcpu: '3-2'"),
    "pinned twice": (domain(b"<cputune><vcpupin vcpu='0' cpuset='1'/><vcpupin vcpu='0' cpuset='2'/></cputune>"),
                     "two vcpupin of vCPU 0"),
    "pins": (domain(b"<cputune>%s</cputune>" % b"".join(b"<vcpupin vcpu='%d' cpuset='%d-8191'/>" % (vcpu, vcpu)
                                                        for vcpu in range(4000))), "too many CPUs in vcpupin"),
    "cells": (domain(b"<cpu><numa>%s</numa></cpu>" % (b"<cell id='0' memory='1'/>" * 2)),
              "guest cells share an id or a vCPU, or leave out an id"),
    "cell of many CPUs": (domain(b"<cpu><numa><cell cpus='0-4095' memory='1'/></numa></cpu>"),
                          "cpus of a cell: '4095'"),
    "cell without memory": (domain(b"<cpu><numa><cell cpus='0'/></numa></cpu>"), "memory: ''"),
    "nodeset": (domain(b"<numatune><memory nodeset='1024'/></numatune>"), "nodeset: '1024'"),
    "bound twice": (domain(b"<numatune><memory nodeset='0'/><memory nodeset='1'/></numatune>"),
                    "a guest cell is bound twice"),
    "pages": (domain(b"<memoryBacking><hugepages><page size='1'/><page size='2'/></hugepages></memoryBacking>"),
              "two page sizes for one guest cell"),
    "hostdev without source": (domain(HOSTDEV % b""), "<hostdev> without the address of its source"),
    "source in a namespace": (domain(HOSTDEV % b"<source xmlns='urn:x'><address bus='1'/></source>"),
                              "<hostdev> without the address of its source"),
    "bus": (domain(HOSTDEV % b"<source><address bus='0x100'/></source>"), "PCI bus: '100'"),
    "function": (domain(HOSTDEV % b"<source><address function='8'/></source>"), "PCI function: '8'"),
    "path as bus": (domain(HOSTDEV % b"<source><address bus='../x'/></source>"), "PCI bus: '../x'"),
    "mdev": (domain(b"<devices><hostdev type='mdev'><source><address uuid='../../x'/></source></hostdev></devices>"),
             "UUID of an mdev: '../../x'"),
}


@pytest.mark.parametrize("case", ABSURD)
def test_absurd_values(case):
    xml, message = ABSURD[case]
    with pytest.raises(RequestError) as refused:
        read(xml)
    assert refused.value.message == f"domain XML: {message}"


@pytest.mark.parametrize(("inside", "message"), [
    (b"<iothreads>1000000</iothreads>", "iothreads: '1000000'"),
    (b"<iothreadids><iothread id='x'/></iothreadids>", "iothread: 'x'"),
    (b"<cputune><vcpupin/></cputune>", "vcpupin: ''"),
    (b"<devices><controller type='pci' index='256'/></devices>", "index of a PCI controller: '256'"),
    (b"<devices><x><address type='pci' slot='0x20'/></x></devices>", "PCI slot: '20'"),
])
def test_absurd_values_of_an_injection(inside, message):
    with pytest.raises(RequestError) as refused:
        inject(domain(b"<os><type machine='q35'/></os>" + inside), PLACEMENT, "c-1")
    assert refused.value.message == f"domain XML: {message}"


@pytest.mark.parametrize("machine", ["pc", "q35"])
def test_no_guest_slot_is_free(machine):
    taken = b"".join(b"<x><address type='pci' bus='%d' slot='%d'/></x>" % ((0, at % 32) if machine == "pc" else (at, 0))
                     for at in range(256))
    with pytest.raises(RequestError, match="domain XML: no guest PCI slot is free"):
        inject(domain(b"<os><type machine='%s'/></os><devices>%s</devices>" % (machine.encode(), taken)), PLACEMENT,
               "c-1")


@pytest.mark.parametrize("xml", [
    domain(b"<vcpu cpuset='%s1'>1</vcpu>" % (b"0-8191," * 100_000)),
    domain(b"<x>%s</x>" % (b"a<!---->" * 120_000)),
    domain(b"<x %s/>" % b" ".join(b"a%d=''" % at for at in range(90_000))),
    domain(b"<cputune>%s</cputune><metadata><claim xmlns='urn:kvm-gpu:domain:1'>%s</claim></metadata>"
           % (b"<vcpupin/>" * 8000, b"<vcpupin/>" * 8000)),
    domain(b"<devices>%s</devices>" % (b"<hostdev><alias name='ua-kvm-gpu-'/></hostdev>" * 8000)),
], ids=["cpuset", "comments", "attributes", "record", "aliases"])
def test_large_documents_are_read_quickly(xml):
    begin = time.process_time()
    read(xml)
    remove(xml)
    assert time.process_time() - begin < 2


# ---- a record that we did not write ----------------------------------------------------------------

def planted(sample, record, attributes=""):
    claim = f"<k:claim xmlns:k='urn:kvm-gpu:domain:1' id='x' {attributes}>{record}</k:claim>"
    return sample.rstrip().removesuffix(b"</domain>") + f"<metadata>{claim}</metadata></domain>".encode()


@pytest.mark.parametrize(("record", "attributes"), [
    ("", ""),
    ("<k:vcpupin vcpu='0' cpuset='0'/><k:memory mode='strict' nodeset='7'/>", ""),
    ("<k:emulator/><k:disk type='file' device='disk'/><k:hostdev mode='subsystem' type='pci' managed='yes'/>", ""),
    ("<k:controller type='scsi' index='0' model='virtio-scsi'/><k:vcpu/><k:name/><k:shares/>", ""),
    ("<k:pcihole64/><k:page/><k:arg value='-fw_cfg'/>", ""),
    ("", "added='devices cputune numatune os features domain cpu numa cell'"),
    ("", "opened='devices cputune numatune os features domain cpu numa cell' added='../x'"),
    ("<k:x><k:y/></k:x>", "added='&#10;' opened=''"),
])
def test_a_planted_record_takes_nothing_away(record, attributes):
    sample = SAMPLES["19-numa-affinity"]
    xml = planted(sample, record, attributes)
    assert read(xml) == read(sample)._replace(claim="x")
    assert remove(xml) == sample.rstrip().removesuffix(b"</domain>") + b"<metadata></metadata></domain>"


@pytest.mark.parametrize("claim", ["", "a" * 65, "a&#10;b", "\u00e9", "a&#127;"])
def test_an_id_that_is_none_of_ours_is_no_claim(claim):
    xml = planted(domain(b""), "").replace(b"id='x'", f"id='{claim}'".encode())
    assert read(xml).claim is None
    assert read(inject(xml, PLACEMENT, "c-1")).claim == "c-1"


def test_a_device_counts_as_ours_exactly_when_it_is_taken_out():
    hostdev = b"<hostdev type='pci'><source><address bus='0x41'/></source><alias name='%s'/></hostdev>"
    xml = domain(b"<devices>%s%s</devices>" % (hostdev % b"ua-kvm-gpu-0", hostdev % b"ua-mine"))
    assert read(xml).hostdevs == ("0000:41:00.0",)
    assert remove(xml) == domain(b"<devices>%s</devices>" % (hostdev % b"ua-mine"))


@pytest.mark.parametrize("foreign", [
    b"<devices><hostdev type='usb'><alias name='ua-kvm-gpu-0'/></hostdev></devices>",
    b"<devices><controller type='pci' model='pci-bridge'><alias name='ua-kvm-gpu-0'/></controller></devices>",
    b"<devices><disk type='pci'><alias name='ua-kvm-gpu-0'/></disk></devices>",
    b"<numatune><memory mode='interleave' nodeset='0'/></numatune>",
    b"<devices><controller type='pci' model='pcie-root'><pcihole64>9</pcihole64></controller></devices>",
    b"<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'><q:arg value='-cpu'/></q:commandline>",
])
def test_what_we_never_write_stays_though_recorded(foreign):
    record = "<k:memory mode='interleave' nodeset='0'/><k:pcihole64>9</k:pcihole64><k:arg value='-cpu'/>"
    assert remove(planted(domain(foreign), record)) == domain(foreign + b"<metadata></metadata>")


def test_each_record_takes_one_element_the_last():
    arg = b"<q:commandline xmlns:q='http://libvirt.org/schemas/domain/qemu/1.0'>%s</q:commandline>"
    ours, theirs = b"<q:arg value='-fw_cfg'/>", b"<q:arg value='name=opt/a'/>"
    xml = planted(domain(arg % (ours + theirs + ours)), "<k:arg value='-fw_cfg'/>")
    assert remove(xml) == domain(arg % (ours + theirs) + b"<metadata></metadata>")


def test_several_claims_all_go():
    xml = planted(planted(domain(b""), "<k:vcpupin/>"), "")
    assert remove(xml) == domain(b"<metadata></metadata>" * 2)
    assert read(inject(xml, PLACEMENT, "c-1")).claim == "c-1"
