"""Faults planted one at a time in a copy of the source: does `plait verify` notice?

python benchmarks/mutate_verify.py [-o FILE.md] [NAME …]

A fault is a text that occurs once under src/plait, what it becomes, and the facts that should notice. Files are found
by content, so that they may move. Every fault runs in a forked process of its own that imports the copy; facts that do
not hold without any fault are not counted on. `tests/papers/test_mutations.py` fails if the text of a fault is gone.
"""

# ruff: noqa: E501 (a fault is one line)

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).resolve().parents[1] / "src" / "plait"


class Fault(NamedTuple):
    what: str
    old: str
    new: str
    facts: str  # ids, separated by blanks

    def file(self, root: Path = SOURCE) -> Path:
        """The one file that holds the text."""
        texts = (
            (path, path.read_text(encoding="utf-8")) for path in sorted([*root.rglob("*.py"), *root.rglob("*.txt")])
        )
        # Facts hold the papers' numbers on purpose; faults are planted in what they check.
        found = [path for path, text in texts for _ in range(text.count(self.old)) if "facts = FactTable()" not in text]
        if len(found) != 1:
            where = ", ".join(str(path.relative_to(root)) for path in found) or "nowhere"
            raise LookupError(f"{self.what}: {self.old!r} stands {len(found)} times ({where}); it must stand once")
        return found[0]


FAULTS = [
    # presets of LiteTransformerSearch
    Fault("a row of LTS: width", "lts-opt-M1 3 1024 16x26", "lts-opt-M1 3 1088 16x26", "L05"),
    Fault("OPT's vocabulary", 'return f"d={d} vocab=50272', 'return f"d={d} vocab=50273', "L30"),
    Fault("GPT-2's two vocabularies", "vocab = 50257 if earlier else 50264", "vocab = 50264", "E04 L30"),
    Fault("heads of the earlier version", "head_dim = 64 if r.earlier", "head_dim = 32 if r.earlier", "E01"),
    Fault("depth of scaled baselines", "_DEPTHS = range(1, 17)", "_DEPTHS = range(1, 16)", "L27"),
    Fault("biases of GPT-2", "{width},pos=none,bias] mlp", "{width},pos=none] mlp", "L03 L05"),
    Fault("OPT's learned positions", "vocab=50272 pos=learned max_len=2048 tie=true norm=layer eps=1e-5\"\n    if",
          "vocab=50272 pos=learned max_len=1024 tie=true norm=layer eps=1e-5\"\n    if", "L05"),
    # presets of PAR Transformer
    Fault("PAR base's pattern", '"(sfff)x6 (f)x8", 1', '"(sfff)x5 (f)x12", 1', "P12 P14 P16"),
    Fault("Sandwich 24B's pattern", '"(s)x5 (sf)x7 (f)x5"', '"(s)x4 (sf)x8 (f)x4"', "P12"),
    Fault("evaluation memory of base", '"64/640/400"', '"64/640/500"', "P18"),
    Fault("evaluation memory of 24B (enwik8)", 'vocab=204 tie=true head_bias=true {_XL}", 8, 2048, "128/2052/820"',
          'vocab=204 tie=true head_bias=true {_XL}", 8, 2048, "128/2048/820"', "P18"),
    Fault("heads of PAR Large", '16, 4096, "128/1600', '8, 4096, "128/1600', "P18"),
    Fault("shared relative biases", "xl-attn[heads={size.heads},shared_bias]", "xl-attn[heads={size.heads}]", "P16"),
    # presets of Forgetting Transformer
    Fault("ticks of FoX (Pro)", '"fqgns", 6.62)', '"fqgn", 6.62)', "F14"),
    Fault("ticks of an ablation", '"fgns", 6.79)', '"fqgs", 6.79)', "F14"),
    Fault("heads of 360M", "FoxSize(24, 1024, 16, 16", "FoxSize(24, 1024, 8, 16", "F08 F14"),
    Fault("heads of the 760M Transformer", "FoxSize(24, 1536, 24, 12", "FoxSize(24, 1536, 24, 24", "F08"),
    Fault("steps of 125M", "2_684_354_560, 5120", "2_684_354_560, 10240", "F08"),
    Fault("RoPE's base", "_THETA = 500000", "_THETA = 10000", "F14"),
    Fault("width of Pro's MLP", '3.5 if "g" in ticks else 4', '4 if "g" in ticks else 4', "F04 F08"),
    Fault("QK-norm per head", '{"q": "qk_norm=per-head"', '{"q": "qk_norm=shared"', "F14"),
    Fault("Table 5's learning rate", '"mamba2-760m": 2e-3', '"mamba2-760m": 1e-3', "F09"),
    Fault("Mamba-2's state", "mamba2[state=128,head_dim=64]", "mamba2[state=64,head_dim=64]", "F06 F10"),
    # presets of MAD
    Fault("heads of probed attention 16 → 4", '"attn": "attn[heads=16]"', '"attn": "attn[heads=4]"', "M09"),
    Fault("heads of probed GLA", '"gla": "gla[heads=8]"', '"gla": "gla[heads=4]"', "M09 M10"),
    Fault("width of probed SwiGLU", '"swiglu": "swiglu[inner=512]"', '"swiglu": "swiglu[inner=256]"', "M09"),
    Fault("width of probed experts", "moe[experts=8,active=2,inner=16]\"}", "moe[experts=8,active=2,inner=32]\"}", "M09"),
    Fault("state of probed Hyena", '"hyena[order=2,short=3,state=16]"', '"hyena[order=2,short=3,state=8]"', "M09 M10"),
    Fault("state of probed Mamba", '"mamba[state=4,expand=2', '"mamba[state=8,expand=2', "M09 M10"),
    Fault("order of probed stripes", '{text} {channel_text} {attention}"', '{attention} {text} {channel_text}"', "M09"),
    Fault("a width of Table C.2", "Size(350, 1024, 2736", "Size(350, 1024, 2752", "M28"),
    Fault("a depth of Table C.2", "Size(641, 1408, 3760, 128, 11, 24", "Size(641, 1408, 3760, 128, 11, 26", "M27"),
    Fault("heads of the 70M row", "Size(70, 576, 1536, 64, 8", "Size(70, 576, 1536, 64, 9", "E06 M28"),
    Fault("experts 7 wide (C.3)", 'inner={round(row.moe_width / 3)}]"\n    stripes', 'inner=7]"\n    stripes', "M30 E10"),
    Fault("experts 7 wide (C.4)", 'inner={round(row.moe_width / 3)}]"\n    mixer', 'inner=7]"\n    mixer', "M31 E10"),
    Fault("Hyena experts 7 wide", "width={row.mixer_width}]", "width=7]", "M31"),
    Fault("a striping ratio", '"1-3": "1A:3H"', '"1-3": "1A:2H"', "M34"),
    Fault("another stripe order", '"(2H:4A:4H:2A)x2", 9.25', '"(4A:2H:2A:4H)x2", 9.25', "M35"),
    Fault("a printed perplexity", '"(6H:6A)x2", 9.28', '"(6H:6A)x2", 9.82', "M36"),
    Fault("a learning rate of Table C.2", "19, 7.25e-4", "19, 7.20e-4", "E12"),
    Fault("the last learning rate of Table C.2", "41, 2.00e-4", "41, 3.00e-4", "M29"),
    # dialects and placement patterns
    Fault("sandwich is turned around", '"s" * k + "sf" * (n - k) + "f" * k', '"f" * k + "sf" * (n - k) + "s" * k', "P13"),
    Fault("PAR's room", "TWO_THIRDS = 2 / 3", "TWO_THIRDS = 3 / 4", "P11"),
    Fault("a stripe too many", "(once * (n // len(once) + 1))[:n]", "(once * (n // len(once) + 1))[1 : n + 1]", "M34"),
    Fault("PAR's letter f", '"f": (Layer.of("mlp", act="relu"),)', '"f": (Layer("xl-attn"),)', "P12"),
    Fault("MAD's letter H", '"h": (Layer("hyena"), _SWIGLU)', '"h": (Layer("hyena"), Layer("hyena"))', "M35 E08 M33"),
    # costs
    Fault("attention's cache", "2 * linear(d, keys, self.bias or", "3 * linear(d, keys, self.bias or", "L03 F05"),
    Fault("forget gate's bias", "linear(d, self.heads, bias=True)", "linear(d, self.heads)", "C01 F03 L03"),
    Fault("Transformer-XL's distances", '"distance": d * inner', '"distance": 2 * d * inner', "P16 L04"),
    Fault("Transformer-XL's scores", "MIXING: 6 * seq * keys * inner", "MIXING: 4 * seq * keys * inner", "P14 P17"),
    Fault("idle experts", "active=router + bias + self.active * expert", "active=router + bias + self.experts * expert", "M12 M30"),
    Fault("SwiGLU's FLOPs", '"gate, up": 4 * seq * d * f', '"gate, up": 2 * seq * d * f', "C02"),
    Fault("GLA's state", "(self.conv > 0)\n        state = keys * (values // self.heads)",
          "(self.conv > 0)\n        state = keys * values", "M10 M13"),
    Fault("Hyena's state", "fixed_state=d * S", "fixed_state=2 * d * S", "M10 M13"),
    Fault("multi-head Hyena's state", "state = d * P * S", "state = d * S", "M10 M13"),
    # the papers' own FLOP counts
    Fault("99 times the convolution", "10 * L * math.log2(L) * D + 4 * L * D,", "99 * L * math.log2(L) * D + 4 * L * D,",
          "M32 M33"),
    Fault("99 times the experts' convolution", "10 * L * math.log2(L) * used", "99 * L * math.log2(L) * used", "M33"),
    Fault("C.4.7's up projections", "4 * L * D * width * o.experts", "4 * L * D * width * o.active", "M33 E11"),
    Fault("Mamba's scan", "2 * L * D * E * S,", "4 * L * D * E * S,", "M32"),
    Fault("Table 6's Mamba-2", '"mamba2": (10, "state")', '"mamba2": (20, "state")', "F06 E16"),
    Fault("Table 6's attention", "extra += 2 * d * (min", "extra += 4 * d * (min", "F06 C02"),
    # recipes and schedules
    Fault("PAR Large's segments", '"seq_len": 384, "memory": 384', '"seq_len": 192, "memory": 384', "P18"),
    Fault("PAR 24B's memory", '"seq_len": 512, "memory": 512', '"seq_len": 512, "memory": 192', "P18"),
    Fault("the Pile's learning rate", '"lr": 3e-5', '"lr": 3e-4', "L28"),
    Fault("LM1B's warm-up", '"seq_len": 32, "lr": 2.5e-4, "warmup": 20_000', '"seq_len": 32, "lr": 2.5e-4, "warmup": 2_000',
          "L28"),
    Fault("BERT's first phase", "7038", "7000", "P22"),
    Fault("BERT's second phase", '"batch": 32768', '"batch": 65536', "P22"),
    Fault("batches by FLOPs", "524_288 if flops < 2e20", "524_288 if flops < 2e19", "M26"),
    Fault("batches of small models", "params < 54e6", "params < 20e6", "M26"),
    Fault("FoX's batch", "FOX = Recipe(batch=32, seq_len=16384", "FOX = Recipe(batch=32, seq_len=8192", "F08 E14"),
    Fault("steps of the long runs", "92_160", "46_080", "E14"),
    Fault("the cosine", "0.5 * (1 + math.cos", "0.5 * (1 - math.cos", "L29 M29"),
    Fault("the trust ratio", "size.clamp(max=self.largest_norm) / length, 1.0)", "length / size, 1.0)", "L29"),
    Fault("LAMB's decay", 'r.add_(p, alpha=group["weight_decay"])', 'r.add_(p, alpha=2 * group["weight_decay"])', "L29"),
    Fault("LAMB's second moment", "(square / (1 - beta2**seen)).sqrt()", "(square / (1 - beta1**seen)).sqrt()", "L29"),
    # tasks
    Fault("half keys, half values", '{"key": self.vocab // 2, "value": self.vocab // 2}',
          '{"key": self.vocab // 4, "value": self.vocab // 2}', "M01 M02"),
    Fault("noise", "noise: float = 0.2", "noise: float = 0.3", "M02"),
    Fault("a setting of recall", "(12_800, 6_400, 3_200, 1_600, 800),\n        \"vocab\": (16, 32, 64, 128),\n    }\n\n    length: int = 32",
          "(12_800, 6_400, 3_200, 800),\n        \"vocab\": (16, 32, 64, 128),\n    }\n\n    length: int = 32", "M04"),
    Fault("exposure", "self.train_size * (self.length // 2) / len(self.ids(\"key\"))",
          "self.train_size * self.length / len(self.ids(\"key\"))", "M05"),
    # searches
    Fault("mutation 0.3 → 0.1", "mutation: float = 0.3", "mutation: float = 0.1", "L09"),
    Fault("parents", "parents: int = 20", "parents: int = 10", "L09"),
    Fault("OPT's grid", "inner=512..6080 step 64", "inner=512..6016 step 64", "L08"),
    Fault("GPT-2's heads", "attn[heads=2|4|8,pos=none,bias]\"], [\"mlp[inner=128", "attn[heads=2|4,pos=none,bias]\"], [\"mlp[inner=128",
          "L08"),
    Fault("crossover", "from_one_NG = rng.random(one_NG.shape) < 0.5", "from_one_NG = rng.random(one_NG.shape) < 0.8", "L09"),
    Fault("Gumbel's temperature", "/ temperature).softmax(dim=1)", "* temperature).softmax(dim=1)", "P03"),
    Fault("PAR's warm-up share", "warmup=0.25,\n    share=0.2,\n    cycle=0", "warmup=0.5,\n    share=0.2,\n    cycle=0", "P04"),
    # analysis and evaluation
    Fault("the hull is the other way round", "(c[1] - a[1]) > (b[1]", "(c[1] - a[1]) < (b[1]", "L11"),
    Fault("Spearman's ties", "last - (copies - 1) / 2", "last - copies / 2 + 1", "L13 L34"),
    Fault("distance of fronts", "/ np.abs(quality_N[nearest])", "/ np.abs(quality_N[claimed_C])", "L12"),
    Fault("bits per character", "self.nats / math.log(2) / units", "self.nats / math.log(2) * units", "P21"),
    Fault("smoothing's window", "np.minimum(window // 2,", "np.minimum(window // 3,", "F11"),
    Fault("the needle's judge", "return written.startswith(answer) and", "return answer in written and", "F17"),
    Fault("rows above one half", "SHARP = 0.5", "SHARP = 0.25", "F16"),
    Fault("the forget matrix", "(c_T[:, None] - c_T).masked_fill", "(c_T - c_T[:, None]).masked_fill", "F16"),
    Fault("LM1B's rare words", "number >= min_count", "number > min_count", "L30"),
]  # fmt: skip


def notices(fault: Fault | None, facts: list[str], copy: Path) -> dict[str, tuple[str, str]]:
    """Status and value of each fact, as computed by the copy of the source with the fault in it."""
    kept = None
    if fault is not None:
        path = fault.file(copy / "plait")
        kept = path.read_text(encoding="utf-8")
        path.write_text(kept.replace(fault.old, fault.new), encoding="utf-8")
    read, write = os.pipe()
    child = os.fork()
    if not child:
        sys.path.insert(0, str(copy))
        sys.dont_write_bytecode = True
        try:
            import plait

            assert Path(plait.__file__).is_relative_to(copy)
            from plait.papers.verify import all_facts

            results = [fact.result() for fact in all_facts() if fact.id in facts]
            answer = {result.id: (result.status, result.ours) for result in results}
        except BaseException as wrong:  # a fault that breaks the import is noticed by every fact
            answer = {id: ("fail", f"{type(wrong).__name__}: {wrong}") for id in facts}
        with os.fdopen(write, "w") as pipe:
            json.dump(answer, pipe)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    if kept is not None:
        path.write_text(kept, encoding="utf-8")
    found: dict[str, tuple[str, str]] = {id: tuple(value) for id, value in json.loads(text).items()}  # type: ignore[misc]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="faults whose description contains one of these")
    parser.add_argument("-o", "--output", type=Path, help="write the table as Markdown")
    given = parser.parse_args()
    chosen = [f for f in FAULTS if not given.names or any(name in f.what for name in given.names)]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    import torch  # once, before forking: importing it takes longer than most facts

    torch.set_num_threads(1)
    started = time.time()
    rows, unseen = [], 0
    with tempfile.TemporaryDirectory(prefix="plait-mutate-") as folder:
        copy = Path(folder)
        shutil.copytree(SOURCE, copy / "plait", ignore=shutil.ignore_patterns("__pycache__"))
        every = sorted({id for fault in chosen for id in fault.facts.split()})
        sound = {id for id, (status, _) in notices(None, every, copy).items() if status in ("pass", "erratum")}
        if weak := sorted(set(every) - sound):
            print(f"not counted on, they do not hold today: {', '.join(weak)}")
        for fault in chosen:
            found = notices(fault, [id for id in fault.facts.split() if id in sound], copy)
            caught = [id for id, (status, _) in found.items() if status not in ("pass", "erratum")]
            unseen += not caught
            rows.append((fault.what, str(fault.file().relative_to(SOURCE)), " ".join(caught) or "**not noticed**"))
            print(f"{'noticed by ' + ' '.join(caught) if caught else 'NOT NOTICED':28} {fault.what}", flush=True)
    share = 1 - unseen / len(chosen)
    summary = f"{len(chosen) - unseen} of {len(chosen)} faults noticed ({share:.1%}) in {time.time() - started:.0f} s"
    print(summary)
    if given.output:
        table = "\n".join(f"| {what} | {where} | {by} |" for what, where, by in rows)
        given.output.write_text(
            f"# Faults that `plait verify` notices\n\n{summary}; `python benchmarks/mutate_verify.py`.\n\n"
            f"| fault | planted in | noticed by |\n|---|---|---|\n{table}\n",
            encoding="utf-8",
        )
    return int(share < 0.95)


if __name__ == "__main__":
    sys.exit(main())
