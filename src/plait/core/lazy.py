"""What a package offers to its users, imported when it is asked for and not before.

    __getattr__ = lazy(__name__, {"Predictor": "predictor", "Setting": "setting"})

in a package's `__init__.py` makes `from plait.device import Predictor` work, wherever below the package it is defined.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy(package: str, homes: Mapping[str, str]) -> Callable[[str], Any]:
    """A package's `__getattr__`: public name → the module of the package that defines it."""

    def getattribute(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(import_module(f"{package}.{homes[name]}"), name)

    return getattribute
