"""Tags of a VM, as its configuration has them: "gpu;office"."""
from __future__ import annotations

OFFER = "gpu-offer-"        # the admin's wish: what the operator sells under this name
HOLDS = "gpu-holds-"        # what the VM has; written by `pve-gpu notes`


def split(text: str) -> tuple[str, ...]:
    """Source: PVE::Tools::split_list."""
    return tuple(tag for tag in text.replace(",", " ").replace(";", " ").split() if tag)


def joined(tags: list[str], before: str) -> str | None:
    """None for no tag; the text before, as it was written, where it says the same."""
    return before if tuple(tags) == split(before) and tags else ";".join(tags) or None
