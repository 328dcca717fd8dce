"""plait designs language-model architectures by measurement."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.model.user_mixers import load_mixer

__version__ = "0.1.0"
__all__ = ["__version__", "load_mixer"]


def __getattr__(name: str) -> Any:
    if name == "load_mixer":  # only then: `plait.core.errors` and the like need none of it
        from plait.model.user_mixers import load_mixer

        return load_mixer
    raise AttributeError(f"module 'plait' has no attribute '{name}'")
