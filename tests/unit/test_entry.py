"""bin/kvm-gpu, as a process: it finds its package wherever it is installed, and ends with the right code."""
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fakekernel.hosts import load
from tests.fakekernel.materialise import materialise

ROOT = Path(__file__).parents[2]
PYTHON = f"python{sys.version_info[0]}.{sys.version_info[1]}"
PLACES = {
    "checkout": ("bin", ""),
    "Debian package": ("usr/bin", "usr/lib/python3/dist-packages"),
    "venv or RPM": ("usr/bin", f"usr/lib/{PYTHON}/site-packages"),
    "pip below /usr/local on Debian": ("usr/local/bin", f"usr/local/lib/{PYTHON}/dist-packages"),
}


def start(*argv, script=ROOT / "bin/kvm-gpu", **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run([sys.executable, "-IS", script, *argv], text=True, **options)


def install(folder, scripts, packages):
    shutil.copytree(ROOT / "kvm_gpu", folder / packages / "kvm_gpu", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / scripts).mkdir(parents=True)
    return shutil.copy(ROOT / "bin/kvm-gpu", folder / scripts)


@pytest.mark.parametrize("place", PLACES)
def test_finds_its_package(place, tmp_path):
    script = install(tmp_path, *PLACES[place])
    done = start("--help", script=script)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("usage: kvm-gpu ")


def test_finds_its_package_through_links(tmp_path):
    script = Path(install(tmp_path / "opt", "bin", "."))
    (tmp_path / "relative").symlink_to("opt/bin/kvm-gpu")
    (tmp_path / "link").symlink_to(tmp_path / "relative")
    assert script.exists()
    assert start("--help", script=tmp_path / "link").returncode == 0


def test_says_what_is_missing(tmp_path):
    (tmp_path / "bin").mkdir()
    done = start("list", script=shutil.copy(ROOT / "bin/kvm-gpu", tmp_path / "bin"))
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == f"kvm-gpu: the Python package kvm_gpu belongs beside {tmp_path}/bin, and is not there\n"


def test_is_started_without_site():
    assert (ROOT / "bin/kvm-gpu").read_text().startswith("#!/usr/bin/python3 -IS\n")


def test_a_wrong_command_line(tmp_path):
    done = start("claim", "--cards", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "kvm-gpu: argument --cards: 'x' is not a number\nHint: kvm-gpu claim --help\n"


def test_a_wrong_command_line_as_json():
    done = start("--json", "claim", "--cards", "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr) == {"error": {
        "code": "request", "message": "argument --cards: 'x' is not a number", "hint": "kvm-gpu claim --help"}}


WRONG = {
    "no VM": (["claim", "--profile", "A16-4Q"], "claim: which VM?", "--vm ID, or --request FILE"),
    "two ways": (["claim", "--vm", "1", "--request", "x", "--keep"],
                 "--request says it all; not together with --vm, --keep", ""),
    "offer and more": (["claim", "--vm", "1", "--offer", "a", "--cards", "2"],
                       "--offer says it all; not together with --cards", ""),
    "unknown offer": (["claim", "--vm", "1", "--offer", "a"], "VM 1: no offer 'a' on this host", "offers: none"),
    "no file": (["claim", "--request", "/does/not/exist"], "/does/not/exist: No such file or directory", ""),
    "stdin twice": (["inject", "--request", "-"], "inject: stdin is the domain XML",
                    "give --request the name of a file"),
    "no such claim": (["show", "one-1"], "VM one-1 holds nothing on this host", "kvm-gpu list"),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_requests(case, tmp_path):
    argv, message, hint = WRONG[case]
    done = start("--root", tmp_path, "--json", *argv)
    assert (done.returncode, done.stdout) == (2, "")
    assert json.loads(done.stderr) == {"error": {"code": "request", "message": message, "hint": hint}}


def test_an_empty_host_has_no_claims(tmp_path):
    done = start("--root", tmp_path, "--json", "list")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout) == {"format": "kvm-gpu/1", "claims": []}


def test_the_root_may_come_from_the_environment(tmp_path):
    done = start("list", env={"KVM_GPU_ROOT": str(tmp_path / "there")})
    assert (done.returncode, done.stdout, done.stderr) == (0, "No claims.\n", "")


def test_a_reader_that_went_away_is_no_news(tmp_path):
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as reader:
        reader.wait()
        done = start("--root", tmp_path, "list", stdout=reader.stdin)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_full_disk_is_told(tmp_path):
    with open("/dev/full", "w") as full:
        done = start("--root", tmp_path, "list", stdout=full)
    assert (done.returncode, done.stderr) == (4, "kvm-gpu: stdout: No space left on device\n")


@pytest.mark.parametrize("verb", ["claim", "inject"])
def test_what_nobody_could_be_told_of_is_given_back(verb, tmp_path):
    materialise(load("flex170"), tmp_path)
    for folder in ("run", "var/lib"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
    domain = (ROOT / "kvm_gpu/data/demo/domain.xml").read_text()
    with open("/dev/full", "w") as full:
        done = start("--root", tmp_path, verb, "--vm", "one-0", "--mechanism", "vf", input=domain, stdout=full)
    assert (done.returncode, done.stderr) == (4, "kvm-gpu: stdout: No space left on device\n")
    assert start("--root", tmp_path, "list").stdout == "No claims.\n"


def test_a_refusal(tmp_path):
    materialise(load("flex170"), tmp_path)
    request = ["--vm", "one-0", "--user", "ann", "--mechanism", "vf", "--cards", "9"]
    told = start("--root", tmp_path, "--json", "claim", *request)
    assert (told.returncode, told.stderr) == (3, "")
    answer = json.loads(told.stdout)
    assert {key: answer[key] for key in ("format", "vm", "owner", "claim", "decision", "slots")} == {
        "format": "kvm-gpu/1", "vm": "one-0", "owner": "ann", "claim": None, "decision": "refused", "slots": []}
    assert answer["reasons"] != []
    claimed = start("--root", tmp_path, "claim", *request)
    assert (claimed.returncode, claimed.stdout) == (3, "")
    assert claimed.stderr.startswith("VM one-0: 9 x vf: refused on this host\n")
    explained = start("--root", tmp_path, "explain", *request)
    assert (explained.returncode, explained.stdout, explained.stderr) == (3, claimed.stderr, "")
