"""Part numbers of Jetson modules: data."""

from __future__ import annotations

MODULES = {
    "p3834-0008": "AGX Thor 128GB",
    "p3767-0000": "Orin NX 16GB",
    "p3767-0001": "Orin NX 8GB",
    "p3767-0003": "Orin Nano 8GB",
    "p3767-0004": "Orin Nano 4GB",
    "p3767-0005": "Orin Nano 8GB devkit",
    "p3701-0000": "AGX Orin 32GB devkit",
    "p3701-0004": "AGX Orin 32GB",
    "p3701-0005": "AGX Orin 64GB",
    "p3701-0008": "AGX Orin Industrial",
    "p3668-0000": "Xavier NX devkit",
    "p3668-0001": "Xavier NX 8GB",
    "p3668-0003": "Xavier NX 16GB",
    "p2888-0001": "AGX Xavier 16GB",
    "p2888-0003": "AGX Xavier 32GB",
    "p2888-0004": "AGX Xavier 32GB",
    "p2888-0005": "AGX Xavier 64GB",
    "p2888-0008": "AGX Xavier Industrial",
    "p3636-0001": "TX2 NX",
    "p3489-0888": "TX2 4GB",
    "p3489-0000": "TX2i",
    "p3310-1000": "TX2",
    "p3448-0000": "Nano devkit",
    "p3448-0002": "Nano",
    "p3448-0003": "Nano 2GB",
    "p2180-1000": "TX1",
}
"""Part numbers of modules, with names for people: NVIDIA's Jetson Linux Developer Guide, Quick Start."""
BOARDS = frozenset(part[:5] for part in MODULES)
"""p3767 is a module, p3768 the carrier board below it; a part number of an unlisted variant of a listed module counts too."""
