# make check    all tests and linters            make demo     a tour on a bundled machine
# make bench    the time of a VM start           make lab      tests with a real kernel, VFIO and libvirt, in QEMU
# make clean    remove what the others made

PYTHON = .venv/bin/python

.PHONY: check demo bench lab clean setup

check: setup
	@$(PYTHON) -VV
	$(PYTHON) -m pytest

demo: setup
	$(PYTHON) -IS bin/kvm-gpu demo

bench: setup
	$(PYTHON) -m tests.bench.start

lab:
	@.ci/setup
	$(PYTHON) -m tests.lab

setup:
	@.ci/setup check

clean:
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
