"""One host with its ledger and configuration: what every step needs, opened once for each process."""
from __future__ import annotations

from kvm_gpu import cache
from kvm_gpu import config as configuration
from kvm_gpu.errors import HostError
from kvm_gpu.ledger import Ledger
from kvm_gpu.model import Config
from kvm_gpu.sysfs import Sysfs
from kvm_gpu.topology import boot_id

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Final, NamedTuple, Optional

    from kvm_gpu.model import Hold, Host, Taken
    from kvm_gpu.profiles import Tables
else:
    from kvm_gpu.light import NamedTuple

RUN: Final = "/run/kvm-gpu"
STATE: Final = "/var/lib/kvm-gpu"
CONFIG: Final = "/etc/kvm-gpu"
LIBVIRT_STATUS: Final = "/run/libvirt/qemu/{}.xml"
PROXMOX_PID: Final = "/run/qemu-server/{}.pid"


class View(NamedTuple):
    """What a decision stands on. `foreign` is known only where the host was read afresh."""
    host: Host
    foreign: tuple[Hold, ...]
    fresh: bool


class Site:
    """`folder`: of the configuration, where it is not the usual one."""

    def __init__(self, sysfs: Sysfs, ledger: Ledger, config: Config, folder: Optional[str] = None) -> None:
        self.sysfs = sysfs
        self.ledger = ledger
        self.config = config
        self._folder = folder or sysfs.root + CONFIG

    def tables(self) -> Tables:
        """Models and vGPU types, with what the administrator added. Cold path."""
        from kvm_gpu.profiles import load
        return load(f"{self._folder}/{configuration.TYPES}")

    def view(self) -> View:
        """The host as cached, else read. Raises HostError."""
        host = cache.load(self._cache_path(), self._cache_key(boot_id(self.sysfs)))
        return self.fresh_view() if host is None else View(host, (), False)

    def fresh_view(self) -> View:
        """The host read afresh, with others' holds; cached for the next. Raises HostError."""
        from kvm_gpu.foreign import foreign_holds
        from kvm_gpu.inventory import read_host
        from kvm_gpu.users import vfio_users
        host = read_host(self.sysfs, self.config.policy.ours, self.tables())
        cache.store(self._cache_path(), self._cache_key(host.boot_id), host)
        holds = self.ledger.taken().holds
        foreign = foreign_holds(self.sysfs, host, holds, self.ledger.uuids(), vfio_users(self.sysfs))
        return View(host, foreign, True)

    def taken(self, view: View, without: frozenset[str] = frozenset(), kept: frozenset[str] = frozenset()) -> Taken:
        """What the ledger holds, as Ledger.taken, and what was seen of others."""
        taken = self.ledger.taken(without, kept)
        slots = {hold.slot for hold in taken.holds}
        return taken._replace(holds=taken.holds + tuple(hold for hold in view.foreign if hold.slot not in slots))

    def running(self, vm_id: str) -> bool:
        """Whether libvirt or Proxmox says that the VM runs. libvirt keeps a status file while a domain does. Proxmox's
        pid file stays behind where QEMU was killed, and its number may be another process's by now: QEMU's command line
        has the file's name. Source: vm_running_locally in qemu-server, PVE/QemuServer/Helpers.pm."""
        if self.sysfs.exists(LIBVIRT_STATUS.format(vm_id)):
            return True
        file = PROXMOX_PID.format(vm_id)
        pid = self.sysfs.read(file)
        command = self.sysfs.read(f"/proc/{pid}/cmdline") if pid is not None and pid.isdecimal() else None
        return command is not None and any(word.endswith(file) for word in command.split("\0"))

    def _cache_path(self) -> str:
        return f"{self.sysfs.root}{RUN}/host"

    def _cache_key(self, boot: str) -> tuple[object, ...]:
        return boot, self.config.stamp


def open_site(
    root: str = "", state: Optional[str] = None, config: Optional[str] = None, lenient: bool = False,
) -> Site:
    """Paths as on the command line: `root` prefixes those that are not given. Raises HostError; with `lenient` a
    configuration that cannot be read counts as none: what is held has to be freed all the same."""
    try:
        settings = configuration.load(config or root + CONFIG, root + RUN)
    except HostError:
        if not lenient:
            raise
        settings = Config()
    return Site(Sysfs(root), Ledger((state or root + STATE) + "/ledger.db"), settings, config)
