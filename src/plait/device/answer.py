"""A prompt and its answer: the latency seen by a user, computed from quantities that are measured in single calls.

    time to first token  = prefill of the prompt
    time per token       = one decoded token, in the middle of the answer
    latency              = time to first token + answer · time per token

Memory is the higher of the two peaks. The same sums apply to measurements and predictions. Interval bounds add up as
well, because the errors of prompt and token are correlated.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from plait.device.predictor import Prediction, Predictor
from plait.device.profile import Profile
from plait.device.quantities import BOTH, Setting
from plait.model.architecture import Architecture

TTFT, TOKEN_TIME = "ttft", "token_time"
ADDED = ("latency", "energy")


class AnswerPredictor:
    """A `Predictor` for mode both: one predictor for the prompt and one for a token of the answer."""

    def __init__(self, profile: Profile, setting: Setting) -> None:
        self.profile, self.answer = profile, setting.answer
        self.setting = Setting(BOTH, setting.seq, setting.batch, **profile.common, answer=setting.answer)
        self.parts = [Predictor(profile, part) for part in setting.parts]

    def predict(self, specs: Sequence[Architecture | str]) -> dict[str, Prediction]:
        return self.joined([part.predict(specs) for part in self.parts])

    def joined(self, predictions: Sequence[dict[str, Prediction]]) -> dict[str, Prediction]:
        """Combine the predictions for the prompt and for one token of the answer."""
        prompt, token = predictions
        sums = {
            name: Prediction(*(getattr(prompt[name], e) + self.answer * getattr(token[name], e) for e in ENDS))
            for name in ADDED
            if name in prompt and name in token
        }
        sums |= {TTFT: prompt["latency"], TOKEN_TIME: token["latency"]}
        higher = [np.maximum(getattr(prompt["memory"], e), getattr(token["memory"], e)) for e in ENDS]
        return {**sums, "memory": Prediction(*higher)}


ENDS = ("mean", "low", "high")


def joined_result(prompt: Mapping[str, Any], token: Mapping[str, Any], answer: int) -> dict[str, Any]:
    """The result of mode both, computed from the results for prompt and token; one entry per quantity."""
    result: dict[str, Any] = {}
    for name in ADDED:
        if name in prompt and name in token:
            value = "seconds" if name == "latency" else "joules"
            result[name] = {
                **{end: prompt[name][end] + answer * token[name][end] for end in (value, "low", "high")},
                "noisy": prompt[name]["noisy"] or token[name]["noisy"],
            }
    both = prompt["latency"], token["latency"]
    # It is only as reliable as the worse of the two.
    result["latency"] |= {name: min(latency[name] for latency in both) for name in ("calm", "repeats")}
    result["latency"] |= {name: max(latency[name] for latency in both) for name in ("spread", "drift", "load")}
    kept = ("seconds", "low", "high", "noisy")
    for name, latency in zip((TTFT, TOKEN_TIME), both, strict=True):
        result[name] = {entry: latency[entry] for entry in kept}
    result["memory"] = max(prompt["memory"], token["memory"], key=lambda memory: float(memory["peak"]))
    return result
