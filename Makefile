# make check    all tests and linters            make demo     a tour on a bundled machine
# make bench    the time of a VM start           make lab      tests with a real kernel, VFIO and libvirt, in QEMU
# make install  what a package would install, below DESTDIR; then `systemctl daemon-reload`
# make clean    remove what the others made

PYTHON = .venv/bin/python

LIB = $(DESTDIR)/usr/lib/python3/dist-packages
SHARE = $(DESTDIR)/usr/share/kvm-gpu
PACKAGES = $(wildcard kvm_gpu one_gpu_driver pve_gpu_hook)

.PHONY: check demo bench lab install clean setup

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

install:
	find $(PACKAGES) -name __pycache__ -prune -o -type f -exec install -D -m 644 {} $(LIB)/{} \;
	/usr/bin/python3 -m compileall -q -d /usr/lib/python3/dist-packages $(addprefix $(LIB)/,$(PACKAGES))
	install -D -m 755 -t $(DESTDIR)/usr/bin bin/*
	install -D -m 755 -t $(DESTDIR)/usr/libexec/kvm-gpu $(wildcard $(addsuffix /libexec/*,$(PACKAGES)))
	find templates -type f -exec install -D -m 644 {} $(SHARE)/{} \;
	install -D -m 644 -t $(DESTDIR)/usr/lib/systemd/system packaging/systemd/*
	install -D -m 440 -t $(DESTDIR)/etc/sudoers.d packaging/sudoers/*

clean:
	rm -rf .venv build dist *.egg-info .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +
