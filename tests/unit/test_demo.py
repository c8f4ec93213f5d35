"""The bundled machine is that of tests/hosts, and the tour on it ends well."""
import subprocess
import sys
from pathlib import Path

from kvm_gpu.demo import STEPS, unpack
from tests.make_demo import ARCHIVE, HEAD, archive, pack

ROOT = Path(__file__).parents[2]


def test_the_bundled_machine_is_up_to_date():
    assert ARCHIVE.read_text() == archive(), "run: python -m tests.make_demo"


def test_unpack_gives_what_pack_was_given(tmp_path):
    unpack('# a remark\n/a/empty\n/a/full\n 444 one "1\\n"\n link two ../one way\n 200 unread ""\n', str(tmp_path))
    assert [path.relative_to(tmp_path).as_posix() for path in sorted(tmp_path.rglob("*"))] == [
        "a", "a/empty", "a/full", "a/full/one", "a/full/two", "a/full/unread"]
    assert pack(tmp_path) == HEAD + '/a/empty\n/a/full\n 444 one "1\\n"\n link two ../one way\n 200 unread ""\n'


def test_the_tour():
    done = subprocess.run([sys.executable, "-IS", ROOT / "bin/kvm-gpu", "demo"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert [line for line in done.stdout.splitlines() if line.startswith("$ ")] == [f"$ {line}" for line, _ in STEPS]
    assert done.stdout.endswith("\n$ kvm-gpu list\nNo claims.\n")
