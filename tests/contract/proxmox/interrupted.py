"""The hook that ends itself with SIGKILL at its n-th step: python3 -IS interrupted.py N VMID PHASE.

A step is a boundary that others can see: before and after each write to the kernel, each start and end of a
transaction, each file of Proxmox VE's, systemd's or ours that is replaced. Where there is no n-th step the hook ends by
itself.
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../../..")

from kvm_gpu.ledger import Ledger
from kvm_gpu.sysfs import Sysfs
from pve_gpu_hook import files, hook
from tests.contract.stepping import interrupt

interrupt(signal.SIGKILL, int(sys.argv.pop(1)), (
    (Sysfs, "write"), (Ledger, "_begin"), (Ledger, "_commit"), (files, "replace"), (files, "remove")))
hook.main()
