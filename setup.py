"""Metadata of the project; `python3 setup.py --version` is the one source of the version."""
from pathlib import Path

from setuptools import find_packages, setup

setup(
    name="kvm-gpu",
    version="0.1.0",
    description="Shares the GPUs of a Linux KVM host among virtual machines",
    long_description=Path("README.md").read_text("utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    python_requires=">=3.11",
    install_requires=["rich>=13"],
    extras_require={"opennebula": ["Jinja2>=3", "pyone>=6.6"],
                    "proxmox": ["Jinja2>=3", "proxmoxer>=1.2", "requests>=2.28"]},
    packages=find_packages(include=["kvm_gpu", "kvm_gpu.*", "one_gpu_driver", "pve_gpu_hook"]),
    package_data={"kvm_gpu": ["data/*.json", "data/demo/*"], "one_gpu_driver": ["remotes/**/*", "libexec/*"],
                  "pve_gpu_hook": ["libexec/*"]},
    data_files=[(f"share/kvm-gpu/templates/{cloud}", sorted(map(str, Path(f"templates/{cloud}").iterdir())))
                for cloud in ("opennebula", "proxmox")],
    scripts=["bin/kvm-gpu", "bin/one-gpu", "bin/pve-gpu"],
)
