"""config.py, configfile.py, strict.py, tomllines.py: what the operator writes, what the hot path gets."""
from __future__ import annotations

import marshal
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu import config, configfile, tomllines
from kvm_gpu.errors import HostError
from kvm_gpu.model import CardLayout, Config, HostLayout, Offer, Policy, Vm, Want

SETTINGS = """\
policy = "spread"                   # the emptiest card first
devices = ["0000:41:00.0", "C1:00.0", "10de:1E30", "1002:*:0380"]
release_deadline_s = 60

[hold_back]
"A16-4Q" = 2
rtx6000 = 1

[cpus]
dedicated = "8-10,12"
"""
OFFERS = """\
[offer.vdi-light]
profile = "A16-2Q"
numa = "required"
enabled_for = { users = ["ann"], groups = ["staff", "labs"] }

[offer.train]
vendor = "NVIDIA"
mechanism = "whole"
fb_mib = 20000
cards = 2
close = "required"
cpu = "dedicated"
keep = true
"""
LAYOUT = """\
name = "night"

[[card]]
address = "0000:41:00.0"
profiles = ["3g.20gb", "3g.20gb"]

[[card]]
model = "a16"
profiles = ["A16-4Q"]
"""
POLICY = Policy("spread", (8, 9, 10, 12), ("0000:41:00.0", "0000:c1:00.0", "10de:1e30", "1002:*:0380"),
                (("A16-4Q", 2), ("rtx6000", 1)))
SOLD = (Offer("train", Want(mechanism="whole", vendor="10de", fb_mib=20000, cards=2), "preferred", "required",
              "dedicated", True),
        Offer("vdi-light", Want(profile="A16-2Q"), "required", users=("ann",), groups=("staff", "labs")))
NIGHT = HostLayout("night", (CardLayout("0000:41:00.0", None, ("3g.20gb", "3g.20gb")),
                             CardLayout(None, "a16", ("A16-4Q",))))


@pytest.fixture
def etc(tmp_path: Path) -> Path:
    folder = tmp_path / "etc"
    (folder / "layouts").mkdir(parents=True)
    return folder


def write_all(etc: Path) -> None:
    (etc / "config.toml").write_text(SETTINGS)
    (etc / "offers.toml").write_text(OFFERS)
    (etc / "layouts" / "night.toml").write_text(LAYOUT)


def load(etc: Path) -> Config:
    return config.load(str(etc), str(etc.parent / "run"))


def complaint(etc: Path, **files: str) -> str:
    """The message of the HostError, without the folder's path."""
    for name, text in files.items():
        (etc / name.replace("__", "/")).with_suffix(".toml").write_text(text)
    with pytest.raises(HostError) as error:
        load(etc)
    return error.value.message.replace(f"{etc}/", "")


def test_whole_configuration(etc: Path) -> None:
    write_all(etc)
    expected = Config(POLICY, SOLD, 60, (NIGHT,), config.take_stamp(str(etc)))
    assert load(etc) == expected            # read from TOML
    assert load(etc) == expected            # read from the compiled form
    assert [type(offer.want) for offer in load(etc).offers] == [Want, Want]


@pytest.mark.parametrize("folder", ["etc", "nowhere"])
def test_host_without_configuration(etc: Path, folder: str) -> None:
    assert config.load(str(etc.parent / folder), str(etc.parent / "run")) == Config(Policy(), (), 300, (), ())
    assert not (etc.parent / "run").exists()


def test_empty_file_means_defaults(etc: Path) -> None:
    (etc / "config.toml").write_text("")
    assert load(etc) == Config(stamp=config.take_stamp(str(etc)))


@pytest.mark.parametrize(("text", "expected"), [
    ('# mine\n\npolcy = "pack"\n', "config.toml:3: unknown key 'polcy'; did you mean 'policy'?"),
    ('policy = "pakc"\n', "config.toml:1: policy: 'pakc' is not one of pack, spread, keep-whole"),
    ("policy = 3\n", "config.toml:1: policy: expected text, not 3"),
    ("release_deadline_s = true\n", "config.toml:1: release_deadline_s: expected a number, not True"),
    ("release_deadline_s = 0\n", "config.toml:1: release_deadline_s: 0 is not between 1 and 86400"),
    ('devices = ["10de:1e30",\n  "10de"]\n',
     "config.toml:2: devices[1]: '10de' is neither an address like 0000:41:00.0 nor vendor:device[:class]"),
    ("devices = [1]\n", "config.toml:1: devices: expected a list, each element text, not 1"),
    ("[hold_back]\na = -1\n", "config.toml:2: hold_back.a: -1 is not between 0 and 4096"),
    ('[cpus]\ndedicated = "9-8"\n', "config.toml:2: cpus.dedicated: '9-8' is not a list of CPUs like '8-31,40-63'"),
    ('cpus = "8-63"\n', "config.toml:1: cpus: expected a table, not '8-63'"),
    ('[cpus]\n# all of\n# them\npool = "8"\n', "config.toml:4: cpus: unknown key 'pool'; known are dedicated"),
    ('policy = "pack\n', "config.toml: Illegal character '\\n' (at line 1, column 15)"),
])
def test_config_refused(etc: Path, text: str, expected: str) -> None:
    assert complaint(etc, config=text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ('[offer.a]\nprofile = "x"\n\ncrads = 2\n', "offers.toml:4: offer.a: unknown key 'crads'; did you mean 'cards'?"),
    ("[offer.a]\ncards = 2\n",
     "offers.toml:1: offer.a: asks for nothing: give a profile, mechanism, vendor, model, fb_mib or address"),
    ('[offer.a]\nprofile = "x"\ncards = 17\n', "offers.toml:3: offer.a.cards: 17 is not between 1 and 16"),
    ('[offer.a]\nmechanism = "mdve"\n',
     "offers.toml:2: offer.a.mechanism: 'mdve' is not one of whole, vf, mdev, nvidia_vfio, mig"),
    ('[offer.a]\nprofile = "x"\nnuma = "yes"\n',
     "offers.toml:3: offer.a.numa: 'yes' is not one of required, preferred, none"),
    ('[offer.a]\nprofile = "x"\nenabled_for = {}\n', "offers.toml:3: offer.a.enabled_for: expected users or groups; "
     "leave it out to enable the offer for everyone"),
    ('[offer.a]\nprofile = "x"\n[offer.a.enabled_for]\nuser = ["u"]\n',
     "offers.toml:4: offer.a.enabled_for: unknown key 'user'; did you mean 'users'?"),
    ('[offer.a]\nprofile = "x"\nenabled_for = { users = "ann" }\n',
     "offers.toml:3: offer.a.enabled_for.users: expected a list, not 'ann'"),
    ('[offer."a/b"]\nprofile = "x"\n',
     "offers.toml:1: offer.a/b: a name has 1 to 64 lower-case letters, digits, '-', '_', '.' or '+'"),
    ('[offers.a]\nprofile = "x"\n', "offers.toml:1: unknown key 'offers'; did you mean 'offer'?"),
])
def test_offers_refused(etc: Path, text: str, expected: str) -> None:
    assert complaint(etc, offers=text) == expected


@pytest.mark.parametrize(("text", "expected"), [
    ('[[card]]\nmodel = "a16"\nprofiles = ["x"]\n', "layouts/n.toml:1: name: expected the layout's name"),
    ('name = "n"\n', "layouts/n.toml:1: card: expected at least one [[card]]"),
    ('name = "n"\n[[card]]\nmodel = "a16"\nprofiles = ["x"]\n'
     '[[card]]\nmodel = "a2"\naddress = "41:00.0"\nprofiles = ["x"]\n',
     "layouts/n.toml:5: card[1]: expected either address or model"),
    ('name = "n"\n[[card]]\naddress = "41:0.0"\nprofiles = []\n',
     "layouts/n.toml:3: card[0].address: '41:0.0' is not like 0000:41:00.0\n"
     "layouts/n.toml:4: card[0].profiles: expected a list of profiles"),
])
def test_layouts_refused(etc: Path, text: str, expected: str) -> None:
    assert complaint(etc, layouts__n=text) == expected


def test_all_problems_of_all_files_in_one_message(etc: Path) -> None:
    offers = '[offer.a]\nkeep = 1\nmodel = "a2"\n'
    assert complaint(etc, config="policy = 1\ndevice = []\n", offers=offers, offer="") == (
        "config.toml:1: policy: expected text, not 1\n"
        "config.toml:2: unknown key 'device'; did you mean 'devices'?\n"
        "offer.toml: unknown file; did you mean 'offers.toml'?\n"
        "offers.toml:2: offer.a.keep: expected true or false, not 1")


def test_an_adapters_file_is_not_ours_to_read(etc: Path) -> None:
    (etc / "opennebula.toml").write_text("not = our = concern\n")
    assert load(etc)._replace(stamp=()) == Config()
    assert complaint(etc, opennebla="") == "opennebla.toml: unknown file; did you mean 'opennebula.toml'?"


def test_one_layout_name_in_two_files(etc: Path) -> None:
    assert complaint(etc, layouts__a=LAYOUT, layouts__b=LAYOUT) == "layouts: 'night' is the name of two"


def test_unreadable_files_are_no_defaults(etc: Path) -> None:
    (etc / "config.toml").symlink_to(etc / "gone")
    assert complaint(etc) == "config.toml: No such file or directory"
    (etc / "config.toml").unlink()
    (etc / "config.toml").mkdir()
    assert complaint(etc) == "config.toml: Is a directory"


# ---- the compiled form -----------------------------------------------------------------------------

def test_a_change_is_seen(etc: Path) -> None:
    write_all(etc)
    load(etc)
    (etc / "config.toml").write_text('policy = "pack"\n')
    assert load(etc).policy == Policy("pack")
    (etc / "offers.toml").unlink()
    assert load(etc).offers == ()
    (etc / "layouts" / "night.toml").rename(etc / "layouts" / "off")
    assert load(etc).layouts == ()


def test_another_folder_is_not_served_from_this_one(etc: Path) -> None:
    write_all(etc)
    load(etc)
    other = etc.parent / "other"
    other.mkdir()
    (other / "config.toml").write_text('policy = "keep-whole"\n')
    assert config.load(str(other), str(etc.parent / "run")).policy == Policy("keep-whole")


def compiled(etc: Path) -> Path:
    """The compiled file after it was given another policy: what is loaded tells whether it was believed."""
    write_all(etc)
    load(etc)
    path = etc.parent / "run" / "config"
    (version, stamp), (policy, *rest) = marshal.loads(path.read_bytes())
    path.write_bytes(marshal.dumps(((version, stamp), (("keep-whole", *policy[1:]), *rest))))
    return path


def test_compiled_form_is_private_and_used(etc: Path) -> None:
    path = compiled(etc)
    assert load(etc).policy == POLICY._replace(order="keep-whole")
    assert [entry.name for entry in path.parent.iterdir()] == ["config"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


@pytest.mark.parametrize("mode", [0o620, 0o602])
def test_compiled_form_that_others_can_write_is_ignored(etc: Path, mode: int) -> None:
    compiled(etc).chmod(mode)
    assert load(etc).policy == POLICY


def test_compiled_form_of_another_user_is_ignored(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(etc)
    monkeypatch.setattr("posix.geteuid", lambda: os.geteuid() + 1)
    assert load(etc).policy == POLICY


def test_compiled_form_behind_a_link_is_ignored(etc: Path) -> None:
    path = compiled(etc)
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")
    assert load(etc).policy == POLICY


@pytest.mark.parametrize("damage", [b"", b"no marshal", *map(marshal.dumps, (1, (1, 2), (1, 2, 3)))])
def test_damaged_compiled_form_is_ignored(etc: Path, damage: bytes) -> None:
    path = compiled(etc)
    path.write_bytes(damage)
    assert load(etc).policy == POLICY


def test_cut_compiled_form_is_ignored(etc: Path) -> None:
    path = compiled(etc)
    whole = path.read_bytes()
    for size in range(0, len(whole), 7):
        path.write_bytes(whole[:size])
        assert load(etc).policy == POLICY


def test_compiled_form_of_another_format_is_ignored(etc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled(etc)
    monkeypatch.setattr(config, "FORMAT", config.FORMAT + 1)
    assert load(etc).policy == POLICY


def test_no_place_for_the_compiled_form_is_no_error(etc: Path) -> None:
    write_all(etc)
    (etc.parent / "run").write_text("a file, not a folder")
    assert load(etc).policy == POLICY
    assert config.load(str(etc), str(etc.parent / "a" / "b")).policy == POLICY


def test_broken_files_leave_no_compiled_form(etc: Path) -> None:
    complaint(etc, config="policy = 1\n")
    assert not (etc.parent / "run").exists()


def test_hot_path_imports_little(etc: Path) -> None:
    write_all(etc)
    load(etc)
    code = ("import sys; sys.path.insert(0, sys.argv[1]); from kvm_gpu import config; "
            "print(config.load(sys.argv[2], sys.argv[3]).policy.order, *sorted(sys.modules))")
    root = Path(config.__file__).parent.parent
    words = subprocess.run([sys.executable, "-ISc", code, str(root), str(etc), str(etc.parent / "run")], check=True,
                           capture_output=True, text=True).stdout.split()
    assert words[0] == "spread"
    heavy = {"tomllib", "re", "json", "enum", "typing", "functools", "dataclasses", "pathlib", "logging", "subprocess",
             "argparse", "kvm_gpu.configfile", "kvm_gpu.strict"}
    assert not heavy.intersection(words)


# ---- offers ----------------------------------------------------------------------------------------

@pytest.mark.parametrize(("users", "groups", "allowed"), [
    (None, None, True), (("ann",), None, True), (None, ("staff",), True), (("bob",), ("staff",), True),
    (("bob",), None, False), (None, ("labs",), False), ((), None, False), (("bob",), ("labs",), False),
])
def test_offer_allows(users: tuple[str, ...] | None, groups: tuple[str, ...] | None, allowed: bool) -> None:
    offer = Offer("a", Want(profile="x"), users=users, groups=groups)
    assert offer.allows(Vm("one-1", "ann", ("staff", "all"))) is allowed


def test_vm_without_user_is_nobody() -> None:
    assert not Offer("a", Want(profile="x"), users=("ann",)).allows(Vm("one-1"))


# ---- lines -----------------------------------------------------------------------------------------

def test_lines_of_every_form() -> None:
    source = '''# a comment with = and [x]
a.b = 1
"q.k" = """
c = 2
[no]
"""
list = [ 1.5, # one
  [2, 3],
  { x = 1, "y" = '"' } ]

[t.u]
when = 1979-05-27 07:32:00
[[t.cards]]
n = 1
[[ t . cards ]]
n = \'\'\'
'' two\'\'\'
[t.cards.deep]
last = true'''
    assert tomllines.lines(source) == {
        ("a",): 2, ("a", "b"): 2, ("q.k",): 3, ("list",): 7, ("list", 0): 7, ("list", 1): 8, ("list", 1, 0): 8,
        ("list", 1, 1): 8, ("list", 2): 9, ("list", 2, "x"): 9, ("list", 2, "y"): 9, ("t",): 11, ("t", "u"): 11,
        ("t", "u", "when"): 12, ("t", "cards"): 13, ("t", "cards", 0): 13, ("t", "cards", 0, "n"): 14,
        ("t", "cards", 1): 15, ("t", "cards", 1, "n"): 16, ("t", "cards", 1, "deep"): 18,
        ("t", "cards", 1, "deep", "last"): 19}


@pytest.mark.parametrize(("source", "depth"), [
    ("a = 1", 0), ("a.b = 1", 1), ("a . b.c = 1.5", 2), ("a = [[1], {b = 2}]", 2), ("[[t.u.v]]", 2),
    ('a = "]]]" # [[[', 0), ("'a'.\"b\" = 1", 1),
])
def test_depth(source: str, depth: int) -> None:
    assert tomllines.depth(source) == depth


KEYS = st.sampled_from(["policy", "devices", "offer", "hold_back", "cpus", "name", "card", "x"])
VALUES = st.sampled_from(['"pack"', "1", "[1, [2]]", "{ a = 1 }", '["0000:41:00.0"]', '"""\nx = 1\n"""', "1.5"])
LINES = st.lists(st.one_of(st.builds("{} = {}".format, KEYS, VALUES), st.builds("[{}]".format, KEYS),
                           st.builds("[[{}]]".format, KEYS), st.just("# note")), max_size=6)


@settings(max_examples=150, deadline=None)
@given(LINES, st.text(max_size=30))
def test_any_text_is_read_or_refused_with_the_files_name(lines: list[str], noise: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for text in ("\n".join(lines), noise):
            path = Path(folder) / "config.toml"
            path.write_bytes(text.encode("utf-8", "surrogatepass"))
            try:
                read = configfile.read(config.take_stamp(folder))
            except HostError as error:
                assert {line.partition(":")[0] for line in error.message.split("\n")} == {str(path)}  # noqa: PT017
            else:
                assert read.policy.order == "pack"
