"""The small parser and argparse read the same table: they must agree."""
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvm_gpu.errors import RequestError
from kvm_gpu.options import GLOBAL, VERBS, Arguments, careful, parse, quick

REGULAR = {
    "no option": (["list"], Arguments("list", {})),
    "global before the verb": (["--json", "list"], Arguments("list", {"--json": ("",)})),
    "global after the verb": (["list", "--json"], Arguments("list", {"--json": ("",)})),
    "value as next word": (["claim", "--vm", "one-42"], Arguments("claim", {"--vm": ("one-42",)})),
    "value after =": (["claim", "--vm=one-42"], Arguments("claim", {"--vm": ("one-42",)})),
    "value with =": (["claim", "--profile=a=b"], Arguments("claim", {"--profile": ("a=b",)})),
    "empty value": (["claim", "--user="], Arguments("claim", {"--user": ("",)})),
    "repeated": (["claim", "--group", "a", "--group", "b"], Arguments("claim", {"--group": ("a", "b")})),
    "last one counts": (["claim", "--vm", "1", "--vm", "2"], Arguments("claim", {"--vm": ("2",)})),
    "stdin": (["claim", "--request", "-"], Arguments("claim", {"--request": ("-",)})),
    "number": (["claim", "--cards", "4"], Arguments("claim", {"--cards": ("4",)})),
    "word": (["claim", "--numa", "required"], Arguments("claim", {"--numa": ("required",)})),
    "operand": (["show", "one-42"], Arguments("show", {"VM": ("one-42",)})),
    "operand after option": (["cordon", "--why", "fan", "0000:41:00.0"],
                             Arguments("cordon", {"--why": ("fan",), "BOARD": ("0000:41:00.0",)})),
}

IRREGULAR = {
    "nothing": ([], "the following arguments are required: VERB", "kvm-gpu --help"),
    "unknown option": (["list", "--bad"], "unrecognized arguments: --bad", "kvm-gpu --help"),
    "abbreviated": (["show", "x", "--js"], "unrecognized arguments: --js", "kvm-gpu --help"),
    "another verb's option": (["list", "--vm=1"], "unrecognized arguments: --vm=1", "kvm-gpu --help"),
    "option before its verb": (["--keep", "claim"], "unrecognized arguments: --keep", "kvm-gpu --help"),
    "no value": (["claim", "--vm"], "argument --vm: expected one argument", "kvm-gpu claim --help"),
    "an option as value": (["claim", "--vm", "--keep"], "argument --vm: expected one argument", "kvm-gpu claim --help"),
    "value for a flag": (["claim", "--keep=1"], "argument --keep: ignored explicit argument '1'",
                         "kvm-gpu claim --help"),
    "no number": (["claim", "--cards", "two"], "argument --cards: 'two' is not a number", "kvm-gpu claim --help"),
    "negative": (["claim", "--cards", "-1"], "argument --cards: '-1' is not a number", "kvm-gpu claim --help"),
    "other digits": (["claim", "--cards", "²"], "argument --cards: '²' is not a number", "kvm-gpu claim --help"),
    "absurd number": (["events", "--limit", "9" * 10], f"argument --limit: '{'9' * 10}' is not a number",
                      "kvm-gpu events --help"),
    "needed option": (["release"], "the following arguments are required: --vm", "kvm-gpu release --help"),
    "needed operand": (["show"], "the following arguments are required: VM", "kvm-gpu show --help"),
    "one operand too many": (["show", "1", "2"], "unrecognized arguments: 2", "kvm-gpu --help"),
}

WORDS = sorted({option.name for verb in VERBS.values() for option in GLOBAL + verb.options})
COMMAND_LINES = st.lists(st.sampled_from(["claim", "release", "show", "cordon", "x", "4", "none", "-", "--", "-1", "",
                                          "--vm=x", "--keep=1", "--numa=none", "--cards=3", *WORDS]), max_size=6)


@pytest.mark.parametrize("case", REGULAR)
def test_regular(case):
    argv, expected = REGULAR[case]
    assert quick(argv) == expected
    assert careful(argv) == expected


@pytest.mark.parametrize("case", IRREGULAR)
def test_irregular(case):
    argv, message, hint = IRREGULAR[case]
    assert quick(argv) is None
    with pytest.raises(RequestError) as caught:
        parse(argv)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_a_word_outside_the_list_is_told_the_list():
    with pytest.raises(RequestError, match="--numa: invalid choice: 'maybe' .*required.*preferred.*none"):
        parse(["claim", "--numa", "maybe"])


@settings(max_examples=150, deadline=None)
@given(COMMAND_LINES)
def test_what_the_small_parser_takes_argparse_takes_alike(argv):
    found = quick(argv)
    if found is not None:
        assert careful(argv) == found


@pytest.mark.parametrize("verb", VERBS)
def test_help_names_every_option(verb, capsys):
    with pytest.raises(SystemExit) as end:
        parse([verb, "--help"])
    shown = capsys.readouterr().out
    assert end.value.code == 0
    assert [option.name for option in GLOBAL + VERBS[verb].options if option.name not in shown] == []


def test_values():
    arguments = Arguments("claim", {"--cards": ("0",), "--group": ("a", "b"), "--keep": ("",), "--vm": ("7",)})
    assert (arguments.number("--cards"), arguments.number("--fb-mib")) == (0, None)
    assert (arguments.text("--vm"), arguments.text("--user")) == ("7", None)
    assert (arguments.texts("--group"), arguments.texts("--user")) == (("a", "b"), ())
    assert (arguments.flag("--keep"), arguments.flag("--json")) == (True, False)
