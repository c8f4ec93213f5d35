"""The guide for admins shows what the commands print, and no command that there is not."""
from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from pve_gpu_hook.cli import VERBS
from pve_gpu_hook.commandline import parser

GUIDE = (Path(__file__).parents[2] / "docs/proxmox-admin.md").read_text()
BLOCKS = ["\n".join(line[4:] for line in block.splitlines()) for block in GUIDE.split("\n\n")
          if all(line.startswith("    ") for line in block.splitlines())]
COMMANDS = re.findall(r"^ +(?:\$ )?(pve-gpu .*)$", GUIDE, re.MULTILINE)


def test_answers(lab, pve_gpu):
    shown = [block.partition("\n") for block in BLOCKS if block.startswith("$ ")]
    assert len(shown) == 2
    for command, _, answer in shown:
        assert pve_gpu(*shlex.split(command)[2:]) == (0, answer + "\n", "")


@pytest.mark.parametrize("command", COMMANDS)
def test_commands(command):
    assert callable(parser(VERBS).parse_args(shlex.split(command)[1:]).verb)


def test_there_are_commands():
    assert len(COMMANDS) == 10
