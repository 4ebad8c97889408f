"""Puts into the wheel what lies beside the package: `presets/` becomes `eulerstack/presets/`, `docs/` likewise."""

from setuptools import find_packages, setup

setup(
    packages=[
        *find_packages(include=["eulerstack*"]),
        "eulerstack.presets",
        "eulerstack.docs",
        "eulerstack.docs.tutorials",
    ],
    package_dir={
        "eulerstack.presets": "presets",
        "eulerstack.docs": "docs",
        "eulerstack.docs.tutorials": "docs/tutorials",
    },
    package_data={
        "eulerstack.presets": ["*.yml"],
        "eulerstack.docs": ["language.md", "building.md"],
        "eulerstack.docs.tutorials": ["*.md"],
    },
)
