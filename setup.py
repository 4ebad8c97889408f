"""Puts the catalogue into the wheel: `presets/` beside the package becomes `eulerstack/presets/` inside it."""

from setuptools import find_packages, setup

setup(
    packages=[*find_packages(include=["eulerstack*"]), "eulerstack.presets"],
    package_dir={"eulerstack.presets": "presets"},
    package_data={"eulerstack.presets": ["*.yml"]},
)
