"""What a shell may complete: names of devices, networks and variants."""

from __future__ import annotations

from collections.abc import Iterable


def devices(incomplete: str) -> list[str]:
    """Devices that ship measurements or have a tree here, and GPUs with published facts."""
    from conv_advisor.app.cli.environment import load_settings
    from conv_advisor.data.gpus import listed
    from conv_advisor.data.shipped import Shipped
    from conv_advisor.models.registry.on_disk import Registry

    known = {*Shipped().device_ids, *Registry(load_settings().models_home).devices()}
    return _beginning(incomplete, (name for name in listed(known) if " " not in name))


def networks(incomplete: str) -> list[str]:
    """Networks and groups of them; in a list, its last entry is completed."""
    from conv_advisor.data import networks as catalogue

    return _last_of_list(incomplete, catalogue.names())


def models(incomplete: str) -> list[str]:
    """Networks that are planned by their name; file names are left to the shell."""
    from conv_advisor.data import networks as catalogue

    return _beginning(incomplete, filter(catalogue.is_network, catalogue.names()))


def variants(incomplete: str) -> list[str]:
    """Variants; in a list, its last entry is completed."""
    from conv_advisor.kernels.catalog import VARIANTS

    return _last_of_list(incomplete, VARIANTS)


def _last_of_list(incomplete: str, known: Iterable[str]) -> list[str]:
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + name for name in _beginning(last, known)]


def _beginning(incomplete: str, known: Iterable[str]) -> list[str]:
    return sorted(name for name in known if name.startswith(incomplete))
