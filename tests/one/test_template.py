"""The VM templates: what they say, that oned's grammar takes it, and how they get into oned."""
from __future__ import annotations

from pathlib import Path

import pytest

from one_gpu_driver.template import Wish, render
from tests.one import grammar
from tests.one.oned import gpus, host

GUIDE = Path(__file__).parents[2] / "docs/opennebula-templates.md"
RANK = ("SCHED_RANK", "GPU_TAKEN")


def requirements(text, **chosen):
    """SCHED_REQUIREMENTS as oned's scheduler reads them for a VM of this template."""
    attributes = dict(grammar.parse(text))
    filled = grammar.filled_in(attributes["SCHED_REQUIREMENTS"], {**attributes, **chosen})
    grammar.check_requirements(filled)
    return filled


def test_a_list_of_sizes():
    text = render("sizes", Wish(sizes=("A16-2Q", "A16-4Q"), cpu="4", vcpus=4, memory_mib=8192))
    assert grammar.parse(text) == [
        ("CPU", "4"), ("VCPU", "4"), ("MEMORY", "8192"),
        ("USER_INPUTS", {"GPU_PROFILE": "M|list|GPU size|A16-2Q,A16-4Q|A16-2Q"}), ("INPUTS_ORDER", "GPU_PROFILE"),
        ("GPU_CARDS", "1"), ("GPU_NUMA", "preferred"),
        ("SCHED_REQUIREMENTS", "\"GPU_POOL[PROFILE='$GPU_PROFILE']/SELLABLE\" > 0"), RANK]
    assert requirements(text, GPU_PROFILE="A16-4Q") == "\"GPU_POOL[PROFILE='A16-4Q']/SELLABLE\" > 0"


def test_several_cards_of_one_size():
    text = render("size", Wish(profile="rtx6000", cards=2, numa="required", close="required"))
    assert grammar.parse(text) == [
        ("GPU_PROFILE", "rtx6000"), ("GPU_CARDS", "2"), ("GPU_NUMA", "required"), ("GPU_CLOSE", "required"),
        ("SCHED_REQUIREMENTS", "GPU_SELLABLE_RTX6000 > 1"), RANK]
    assert requirements(text) == "GPU_SELLABLE_RTX6000 > 1"


def test_an_offer():
    text = render("offer", Wish(profile="A16-2Q", offer="vdi-light"))
    assert grammar.parse(text) == [
        ("GPU_OFFER", "vdi-light"), ("SCHED_REQUIREMENTS", "GPU_SELLABLE_A16_2Q > 0"), RANK]
    assert requirements(text) == "GPU_SELLABLE_A16_2Q > 0"


def test_slots():
    """oned's own counting takes the place of SCHED_REQUIREMENTS."""
    text = render("slot", Wish(profile="A16-4Q", cards=2, numa="required"))
    pci = ("PCI", {"VENDOR": "fff0", "DEVICE": "97d62cf9", "CLASS": "ff00"})
    assert grammar.parse(text) == [pci, pci, ("GPU_NUMA", "required"), ("GPU_CLOSE", "preferred"), RANK]


def test_a_quote_stays_within_its_value():
    text = render("size", Wish(profile='a" ] X = "b'))
    assert dict(grammar.parse(text))["GPU_PROFILE"] == 'a" ] X = "b'


@pytest.mark.parametrize(("argv", "message"), [
    (("size",), "template size: give --profile, the size by which it is scheduled"),
    (("offer", "--profile", "A16-2Q"), "template offer: give --offer"),
    (("slot",), "template slot: give --profile, the size by which it is scheduled"),
    (("sizes", "--sizes", "A16-2Q,b'c"), "template sizes: \"b'c\" cannot stand in a list: it has one of ' , |"),
    (("size", "--profile", "A16-2Q", "--cards", "0", "--numa", "near"),
     "template size: cards: 0 is not between 1 and 16; numa: 'near' is not one of required, preferred, none"),
    (("size", "--profile", "A16\n2Q"), "'A16\\n2Q' cannot stand in a template"),
])
def test_wishes_that_make_no_template(one_gpu, argv, message):
    assert one_gpu("template", "render", *argv) == (2, "", f"one-gpu: {message}\n")


def test_the_sizes_are_those_of_the_fleet(oned, one_gpu):
    oned.hosts = [host("node1", gpus(("A16-16Q", "a16", 4, 0, 4, 4), ("A16-4Q", "a16", 16, 16, 0, 0))),
                  host("node2", gpus(("rtx6000", "rtx6000", 4, 0, 4, 4), ("T4-4Q", "t4", 0, 0, 0, 0)))]
    code, out, err = one_gpu("template", "render", "sizes")
    assert (code, err) == (0, "")
    assert dict(grammar.parse(out))["USER_INPUTS"] == {"GPU_PROFILE": "M|list|GPU size|A16-4Q,A16-16Q,rtx6000|A16-4Q"}


def test_a_fleet_without_gpus(oned, one_gpu):
    oned.hosts = [host("node1")]
    assert one_gpu("template", "render", "sizes") == (
        2, "", "one-gpu: template sizes: no host has a GPU to give: see one-gpu fleet\n")


def test_push_makes_a_template(oned, one_gpu):
    argv = ("size", "--profile", "A16-4Q", "--cpu", "2", "--memory-mib", "4096")
    assert one_gpu("template", "push", *argv, "--name", "GPU small") == (0, "template 7: GPU small\n", "")
    text = one_gpu("template", "render", *argv).out
    assert oned.calls == [("one.templatepool.info", -3, -1, -1),
                          ("one.template.allocate", f'NAME = "GPU small"\n{text}')]


def test_push_renews_a_template_and_keeps_the_rest_of_it(oned, one_gpu):
    oned.templates = {"other": 4, "GPU small": 5}
    argv = ("size", "--profile", "A16-4Q")
    assert one_gpu("template", "push", *argv, "--name", "GPU small") == (0, "template 5: GPU small\n", "")
    text = one_gpu("template", "render", *argv).out
    assert oned.calls == [("one.templatepool.info", -3, -1, -1), ("one.template.update", 5, text, 1)]


def examples():
    """The indented blocks of the guide."""
    blocks = GUIDE.read_text().split("\n\n")
    return ["\n".join(line[4:] for line in block.splitlines()) + "\n" for block in blocks if block.startswith("    ")]


def test_the_guide_shows_what_the_commands_print(one_gpu):
    commands = [text for text in examples() if text.startswith("one-gpu template render")]
    shown = [examples()[examples().index(text) + 1] for text in commands]
    assert len(commands) == 4
    assert shown == [one_gpu(*command.split()[1:]).out for command in commands]


def test_oned_takes_every_template_of_the_guide():
    templates = [text for text in examples() if "=" in text and not text.startswith("one-gpu")]
    assert len(templates) == 8
    required = [text for text in templates if "SCHED_REQUIREMENTS" in dict(grammar.parse(text))]
    assert len(required) == 6
    for text in required:
        requirements(text, GPU_PROFILE="A16-4Q")
