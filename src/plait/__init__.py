"""plait designs language-model architectures by measurement. The front door: one function per verb.

Nothing is imported before it is asked for: `import plait` takes milliseconds and no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.api import runs
    from plait.api.describe import architecture, build, cost
    from plait.api.open_run import open_run
    from plait.api.profile import compare_profiles, open_profile, profile
    from plait.api.train import train
    from plait.core.errors import UserError
    from plait.model.user_mixers import load_mixer
    from plait.records.store import open_store

__version__ = "0.1.0"

#: name → where it is; what users import, and all that most of them need.
DOOR: dict[str, str] = {
    "UserError": "plait.core.errors",
    "architecture": "plait.api.describe",
    "build": "plait.api.describe",
    "cost": "plait.api.describe",
    "compare_profiles": "plait.api.profile",
    "open_profile": "plait.api.profile",
    "open_run": "plait.api.open_run",
    "profile": "plait.api.profile",
    "train": "plait.api.train",
    "load_mixer": "plait.model.user_mixers",
    "open_store": "plait.records.store",
}
#: Verbs with several functions, as `plait.front.pick`: name → the module that has them.
GROUPS: dict[str, str] = {
    "runs": "plait.api.runs",
}
__all__ = [
    "UserError",
    "__version__",
    "architecture",
    "build",
    "compare_profiles",
    "cost",
    "load_mixer",
    "open_profile",
    "open_run",
    "open_store",
    "profile",
    "runs",
    "train",
]


def __getattr__(name: str) -> Any:
    if name in GROUPS:
        return import_module(GROUPS[name])
    if name not in DOOR:
        raise AttributeError(f"module 'plait' has no attribute '{name}'")
    return getattr(import_module(DOOR[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *DOOR, *GROUPS})
