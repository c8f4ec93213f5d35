"""kvm-gpu that sends itself a signal at its n-th step: python3 -IS interrupted.py KILL|STOP N ARGUMENTS.

A step is a boundary that others can see: before and after each write to the kernel, each start and end of a
transaction, and each output. Where there is no n-th step the command ends by itself.
"""
import os
import signal
import sys

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)) + "/../..")

from kvm_gpu import cli
from kvm_gpu.ledger import Ledger
from kvm_gpu.sysfs import Sysfs
from tests.contract.stepping import interrupt

number, at = signal.Signals["SIG" + sys.argv.pop(1)], int(sys.argv.pop(1))
interrupt(number, at, ((Sysfs, "write"), (Ledger, "_begin"), (Ledger, "_commit"), (cli, "_write")))
cli.main()
