"""What is measured: which way of running, how many tokens, on what."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Any

from plait.core.errors import UserError, did_you_mean

MODES = ("prefill", "decode")
BOTH = "both"
ANSWER = 64  # tokens, where mode both does not say
DEVICES = ("cpu", "cuda", "mps", "xpu")
DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2, "float16": 2}  # bytes per number


@dataclass(frozen=True)
class Setting:
    """One way of running a model.

    mode      prefill: `seq` new tokens at once, scored and taken into the state; decode: one token after `seq` others;
              both: a prompt of `seq` tokens, and an answer of `answer` tokens after it, one by one
    threads   of the processor. One by default, as LiteTransformerSearch (arXiv:2203.02094) measures: a single thread
              has a clock of its own by which a disturbed measurement is told from a slow one
    """

    mode: str = "prefill"
    seq: int = 192
    batch: int = 1
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 1
    answer: int = 0  # tokens; of mode both alone

    @classmethod
    def of(cls, mode: str, answer: int | None, **others: Any) -> Setting:
        """As a user gives it; in mode both an answer has a length by default."""
        return cls(mode, **others, answer=answer or (ANSWER if mode == BOTH else 0))

    def __post_init__(self) -> None:
        allowed = (*MODES, BOTH)
        if self.mode not in allowed:
            near = did_you_mean(self.mode, allowed)
            raise UserError(f"mode '{self.mode}' given.{near} Allowed: {', '.join(allowed)}.")
        if (self.mode == BOTH) != (self.answer > 0):
            raise UserError(
                f"mode {self.mode} with an answer of {self.answer} tokens: --answer works only with --mode {BOTH}."
            )
        kind = self.device.partition(":")[0]
        if kind not in DEVICES:
            near = did_you_mean(kind, DEVICES)
            raise UserError(f"device '{self.device}' given.{near} Allowed: {', '.join(DEVICES)}, cuda:1 and so on.")
        if self.dtype not in DTYPES:
            near = did_you_mean(self.dtype, DTYPES)
            raise UserError(f"dtype '{self.dtype}' given.{near} Allowed: {', '.join(DTYPES)}.")
        for name in ("seq", "batch", "threads"):
            if getattr(self, name) < 1:
                raise UserError(f"{name}={getattr(self, name)} given; must be at least 1.")
        if self.on_cpu and DTYPES[self.dtype] < 4:
            raise UserError(f"dtype {self.dtype} can be measured only on GPUs; on a CPU use float32.")

    @property
    def on_cpu(self) -> bool:
        return self.device == "cpu"

    @property
    def where(self) -> str:
        """The machine's part, in words."""
        return f"{self.device}, {self.dtype}, {self.threads} thread{'s' * (self.threads > 1)}"

    @property
    def words(self) -> str:
        """What runs: prefill of 256 tokens."""
        if self.mode == BOTH:
            return f"a prompt of {self.seq:,} tokens and an answer of {self.answer:,}"
        return (
            f"prefill of {self.seq:,} tokens" if self.mode == "prefill" else f"decode of one token after {self.seq:,}"
        )

    @property
    def parts(self) -> tuple[Setting, ...]:
        """What can be measured of it in one call each: of both the prompt, and a token in the middle of the answer."""
        if self.mode != BOTH:
            return (self,)
        prompt = replace(self, mode="prefill", answer=0)
        return prompt, replace(prompt, mode="decode", seq=self.seq + self.answer // 2)

    @property
    def longest(self) -> int:
        """Tokens of a sequence at the end."""
        return self.seq + (self.answer if self.mode == BOTH else self.mode == "decode")

    @property
    def new_tokens(self) -> int:
        """Tokens computed in one call, each sequence."""
        return self.seq if self.mode == "prefill" else 1

    @property
    def held_tokens(self) -> int:
        """Tokens in the state before the call."""
        return 0 if self.mode == "prefill" else self.seq

    @property
    def number_bytes(self) -> int:
        return DTYPES[self.dtype]

    def as_dict(self) -> dict[str, Any]:
        """Results are found again by it: what only one mode has is in its dictionary alone."""
        found = asdict(self)
        return found if self.answer else {name: value for name, value in found.items() if name != "answer"}
