from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from one_gpu_driver import cli
from tests.one.oned import SESSION, Oned, serving


class Answer(NamedTuple):
    code: int
    out: str
    err: str


@pytest.fixture
def oned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Oned]:
    """A running oned, and the environment in which one-gpu finds it."""
    (tmp_path / "one_auth").write_text(SESSION + "\n")
    with serving() as made:
        monkeypatch.setenv("ONE_AUTH", str(tmp_path / "one_auth"))
        monkeypatch.setenv("ONE_XMLRPC", made.endpoint)
        yield made


@pytest.fixture
def one_gpu(capfd: pytest.CaptureFixture[str]) -> Callable[..., Answer]:
    def run(*argv: str) -> Answer:
        code = cli.main(list(argv))
        return Answer(code, *capfd.readouterr())
    return run
