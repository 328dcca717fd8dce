"""plait designs language-model architectures by measurement. The front door: one function per verb.

Nothing is imported before it is asked for: `import plait` takes milliseconds and no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from plait.api import analyse, bench, front, runs, scale, study
    from plait.api.check import check, verify
    from plait.api.compare import compare
    from plait.api.design import design
    from plait.api.doctor import doctor
    from plait.api.downstream import finetune, harness, prepare_tasks
    from plait.api.evaluate import evaluate
    from plait.api.export import export, import_weights
    from plait.api.generate import generate
    from plait.api.listing import corpus, listing
    from plait.api.measure import measure, measure_lengths, predict
    from plait.api.new import new_plugin
    from plait.api.open_run import open_run
    from plait.api.probe import plan_probe, probe
    from plait.api.profile import compare_profiles, open_profile, profile
    from plait.api.report import report
    from plait.api.search import search
    from plait.api.show import architecture, build, cost, show
    from plait.api.task import task
    from plait.api.train import sweep, train
    from plait.core.errors import UserError
    from plait.data.corpora import open_corpus
    from plait.evals.perplexity import perplexity
    from plait.model.user_mixers import load_mixer
    from plait.records.store import open_store
    from plait.serving.server import serve

__version__ = "0.1.0"

#: name → where it is; what users import, and all that most of them need.
DOOR: dict[str, str] = {
    "UserError": "plait.core.errors",
    "architecture": "plait.api.show",
    "build": "plait.api.show",
    "check": "plait.api.check",
    "compare": "plait.api.compare",
    "compare_profiles": "plait.api.profile",
    "corpus": "plait.api.listing",
    "cost": "plait.api.show",
    "design": "plait.api.design",
    "doctor": "plait.api.doctor",
    "evaluate": "plait.api.evaluate",
    "export": "plait.api.export",
    "finetune": "plait.api.downstream",
    "generate": "plait.api.generate",
    "harness": "plait.api.downstream",
    "import_weights": "plait.api.export",
    "listing": "plait.api.listing",
    "load_mixer": "plait.model.user_mixers",
    "measure": "plait.api.measure",
    "measure_lengths": "plait.api.measure",
    "new_plugin": "plait.api.new",
    "open_corpus": "plait.data.corpora",
    "open_profile": "plait.api.profile",
    "open_run": "plait.api.open_run",
    "open_store": "plait.records.store",
    "perplexity": "plait.evals.perplexity",
    "plan_probe": "plait.api.probe",
    "predict": "plait.api.measure",
    "prepare_tasks": "plait.api.downstream",
    "probe": "plait.api.probe",
    "profile": "plait.api.profile",
    "report": "plait.api.report",
    "search": "plait.api.search",
    "serve": "plait.serving.server",
    "show": "plait.api.show",
    "sweep": "plait.api.train",
    "task": "plait.api.task",
    "train": "plait.api.train",
    "verify": "plait.api.check",
}
#: Verbs with several functions, as `plait.front.pick`: name → the module that has them.
GROUPS: dict[str, str] = {
    "analyse": "plait.api.analyse",
    "bench": "plait.api.bench",
    "front": "plait.api.front",
    "runs": "plait.api.runs",
    "scale": "plait.api.scale",
    "study": "plait.api.study",
}
__all__ = [
    "UserError",
    "__version__",
    "analyse",
    "architecture",
    "bench",
    "build",
    "check",
    "compare",
    "compare_profiles",
    "corpus",
    "cost",
    "design",
    "doctor",
    "evaluate",
    "export",
    "finetune",
    "front",
    "generate",
    "harness",
    "import_weights",
    "listing",
    "load_mixer",
    "measure",
    "measure_lengths",
    "new_plugin",
    "open_corpus",
    "open_profile",
    "open_run",
    "open_store",
    "perplexity",
    "plan_probe",
    "predict",
    "prepare_tasks",
    "probe",
    "profile",
    "report",
    "runs",
    "scale",
    "search",
    "serve",
    "show",
    "study",
    "sweep",
    "task",
    "train",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name in GROUPS:
        return import_module(GROUPS[name])
    if name not in DOOR:
        raise AttributeError(f"module 'plait' has no attribute '{name}'")
    return getattr(import_module(DOOR[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *DOOR, *GROUPS})
