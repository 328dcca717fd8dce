"""Text pipelines of LiteTransformerSearch and evaluations of the Forgetting Transformer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from plait.core.units import percent
from plait.data import open_corpus
from plait.model.architecture import architecture
from plait.papers.recipes import recipe
from plait.papers.verify import FactTable

facts = FactTable()

LINES = " the cat sat on the mat . \n the dog sat on the rug . \n \n the cat ran . \n"


@facts.fact("L30", "word-level and BPE pipelines; vocabularies 267,735, 50,264, 50,257, 50,272; lengths 192 and 32",
            needs="tokenizers of plait[hf]")  # fmt: skip
def pipelines() -> tuple[str, str, bool]:
    """WikiText-103's files as published, by words and by BPE, and back; LM1B's words occur three times or more."""
    with TemporaryDirectory(prefix="plait-verify-") as folder:
        for part in ("train", "valid", "test"):
            (Path(folder) / f"wiki.{part}.tokens").write_text(LINES * 3, encoding="utf-8")
        corpus, cache = f"wikitext-103:{folder}", Path(folder) / "cache"
        words, bpe = open_corpus(corpus, cache=cache), open_corpus(corpus, "bpe:size=280", cache=cache)
        rare = open_corpus(corpus, "words:min_count=9", cache=cache)
        ids = words.tokens("validation")
        # <eos>, <unk>, then by frequency: the (12 times), . and cat … (6 of each of three lines), alphabetically.
        first = words.tokenizer.decode(np.arange(2, 5))
        by_word = len(ids) == 3 * (7 + 7 + 3 + 1 + 4 - 1) + 3 and words.vocab == 2 + 9
        round_trip = bpe.tokenizer.decode(bpe.tokens("test")) == LINES * 3 and bpe.vocab == 280
    vocabularies = [architecture(name).header.vocab for name in
                    ("lts-xl-arm-M1", "lts-gpt2-arm-M1", "lts1-gpt2-arm-M1", "lts-opt-baseline")]  # fmt: skip
    lengths = [recipe(name).recipe.seq_len for name in ("lts-xl-wt103", "lts-gpt2-wt103", "lts-xl-lm1b")]
    ours = (
        f"{words.vocab} words, most frequent {first!r}, {rare.vocab - 2} of them 9 times or more; "
        f"BPE {bpe.vocab}, round trip {round_trip}; {vocabularies}; {lengths}"
    )
    published = (
        "11 words, most frequent 'the . cat', 2 of them 9 times or more; BPE 280, round trip True; "
        "[267735, 50264, 50257, 50272]; [192, 192, 32]"
    )
    return published, ours, ours == published and by_word


@facts.fact("F16", "forget-gate and attention maps (Fig. 3): F is the product of gates, A what the layer computes with")
def maps() -> tuple[str, str, bool]:
    import torch

    from plait.evals.maps import attention_map
    from plait.model import build

    model: Any = build("d=32 vocab=19 init=0.3 | swiglu fox[heads=2] swiglu").double()
    tokens = torch.randint(19, (24,), generator=torch.Generator().manual_seed(0))
    seen: list[Any] = []
    mixer = model.backbone.blocks[1].mixer
    mixer.register_forward_hook(lambda _, inputs, out: seen.append((inputs[0].detach(), out.detach())))
    attention_maps = [attention_map(model, tokens, layer=1, head=head) for head in (0, 1)]
    (x, out), *_ = seen
    gates = torch.sigmoid(mixer.forget_gate(x))[0].detach().numpy()
    forget = [
        np.array([[np.prod(gates[j + 1 : i + 1, head]) if j <= i else 0.0 for j in range(24)] for i in range(24)])
        for head in (0, 1)
    ]
    gap_f = max(
        float(np.abs(head_map.forget_TT - by_hand).max())
        for head_map, by_hand in zip(attention_maps, forget, strict=True)
    )
    heads = np.concatenate([head_map.attention_TT @ head_map.values_TP for head_map in attention_maps], axis=1)
    gap_a = float(np.abs(mixer.output(torch.from_numpy(heads)).detach().numpy() - out[0].numpy()).max())
    sharp = [float(np.mean([row.max() > 0.5 for row in head_map.attention_TT])) for head_map in attention_maps]
    good = max(gap_f, gap_a) < 1e-10 and [head_map.sharp for head_map in attention_maps] == sharp and 0 < min(sharp) < 1
    rows = " and ".join(map(percent, sharp))
    ours = f"largest gaps {gap_f:.0e} (F), {gap_a:.0e} (A V); A > 0.5 in {rows} of the rows"
    return "equal; some rows of A above 0.5", ours, good


@facts.fact("F17", "needle in a haystack: 11 × 11 lengths and depths, easy and standard, judged word for word")
def needle() -> tuple[str, str, bool]:
    from plait.data.tokenizers import Bytes
    from plait.evals.needle import NEEDLES, Haystack, depths, lengths_up_to, needle_grid
    from plait.evals.questions import judged

    filler = Bytes().encode("Rain fell on the town. The market opened late. A boy counted boats. " * 40)
    lengths, places = lengths_up_to(32_000, 300, 11), depths(11)
    stack = Haystack(Bytes(), filler, NEEDLES[0])
    found_at = [
        Bytes().decode(stack.prompt(1000, depth)).index(NEEDLES[0].statement) / (1000 - 200) for depth in places
    ]
    scores = {}
    for mode in ("standard", "easy"):
        for reader in (_Reader(), _Reader(deaf=True)):
            grid = needle_grid(reader, Bytes(), filler, lengths=[400, 1000], depths=places[::5], mode=mode)
            scores[mode, reader.deaf] = grid.score, round(float(grid.log_likelihood_RC.max()), 3)
    words = [
        judged(text, "inside the teapot")
        for text in ("inside the teapot.", "inside the teapots", "hidden inside the teapot")
    ]
    ours = f"{lengths[0]}, {lengths[1]} … {lengths[-1]} × {len(places)}; {list(scores.values())}; {words}"
    published = "1000, 4100 … 32000 × 11; [(1.0, 0.0), (0.0, -30.0), (1.0, 0.0), (0.0, -30.0)]; [True, False, False]"
    deep = found_at == sorted(found_at) and found_at[0] < 0.03 and 0.9 < found_at[-1] < 1
    return published, ours, ours == published and deep


class _Reader:
    """A reader that generates the answer if its input contains the fact; a deaf one always generates another letter."""

    def __init__(self, *, deaf: bool = False) -> None:
        self.deaf = deaf

    def init_state(self, batch: int) -> list[str]:
        return [""] * batch

    def extend(self, tokens_BT: Any, state: list[str]) -> tuple[Any, list[str]]:
        import torch

        from plait.evals.needle import NEEDLES

        scores = torch.zeros(*tokens_BT.shape, 256)
        texts = list(state)
        for row, new in enumerate(tokens_BT.tolist()):
            for at, token in enumerate(new):
                texts[row] += chr(token)
                before, asked, written = texts[row].rpartition("Answer:")
                knows = asked and NEEDLES[0].answer in before and not self.deaf
                letter = f" {NEEDLES[0].answer}.".removeprefix(written)[:1] if knows else "#"
                scores[row, at, ord(letter or ".")] = 30.0
        return scores, texts


ITEMS = [("the cat", ["sat", "was on the mat"]), ("a dog", ["ran to me", "b"]), ("we", ["go", "stay here now"]),
         ("it is", ["so", "not so at all"]), ("rain", ["fell", "stops at the old town"])]  # fmt: skip


@facts.fact("F23", "acc, acc-n (length-normalised) and perplexity as in LM-eval, on toy items by hand",
            needs="lm_eval of plait[eval]")  # fmt: skip
def harness_metrics() -> tuple[str, str, bool]:
    from plait.data.tokenizers import Bytes
    from plait.evals.harness import evaluate
    from plait.model import build

    model: Any = build("d=32 vocab=257 init=0.4 | attn[heads=2] swiglu", seed=5)
    words = _WithEnd(Bytes())
    with TemporaryDirectory(prefix="plait-verify-") as folder:
        home = Path(folder)
        lines = [json.dumps({"q": q, "choices": choices, "answer": 1}) for q, choices in ITEMS]
        (home / "items.jsonl").write_text("\n".join(lines), encoding="utf-8")
        common = "dataset_path: json\ndataset_kwargs: {data_files: {test: items.jsonl}}\ntest_split: test\n"
        (home / "choice.yaml").write_text(
            f"task: choice\n{common}output_type: multiple_choice\ndoc_to_text: '{{{{q}}}}'\n"
            "doc_to_choice: '{{choices}}'\ndoc_to_target: answer\n"
            "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
            encoding="utf-8",
        )
        (home / "text.yaml").write_text(
            f"task: text\n{common}output_type: loglikelihood_rolling\ndoc_to_text: ''\ndoc_to_target: '{{{{q}}}}'\n"
            "metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]\n",
            encoding="utf-8",
        )
        rows = evaluate(model, words, [home / "choice.yaml", home / "text.yaml"])["table"]  # type: ignore[arg-type]
    metrics = {row["metric"]: row["value"] for row in rows}
    likely = [[_log_likelihood(model, q, f" {choice}") for choice in choices] for q, choices in ITEMS]
    lengths = [[len(choice) for choice in choices] for _, choices in ITEMS]
    total = sum(_log_likelihood(model, "", q) for q, _ in ITEMS)
    expected = {
        "acc": np.mean([np.argmax(row) == 1 for row in likely]),
        "acc_norm": np.mean([np.argmax(np.divide(row, n)) == 1 for row, n in zip(likely, lengths, strict=True)]),
        "word_perplexity": math.exp(-total / sum(len(q.split()) for q, _ in ITEMS)),
        "bits_per_byte": -total / sum(len(q) for q, _ in ITEMS) / math.log(2),
    }
    published, ours = (", ".join(f"{name} {values[name]:.4g}" for name in expected) for values in (expected, metrics))
    close = all(math.isclose(metrics[name], value, rel_tol=1e-4) for name, value in expected.items())
    return published, ours, close and expected["acc"] != expected["acc_norm"]


class _WithEnd:
    """A byte tokenizer with one more token, which ends a text."""

    vocab, end = 257, 256

    def __init__(self, inner: Any) -> None:
        self.encode, self.decode = inner.encode, inner.decode


def _log_likelihood(model: Any, context: str, continuation: str) -> float:
    """The log-likelihood token by token, without batching."""
    import torch

    seen, total = list(context.encode()) or [256], 0.0
    for token in continuation.encode():
        with torch.no_grad():
            total += float(model(torch.tensor([seen]))[0, -1].log_softmax(-1)[token])
        seen.append(token)
    return total


@facts.fact("F26", "Hugging Face class, checkpoint and generate(): the same logits, the same tokens as ours",
            needs="transformers of plait[hf]")  # fmt: skip
def hugging_face() -> tuple[str, str, bool]:
    import torch
    from transformers import AutoModelForCausalLM
    from transformers.utils.logging import disable_progress_bar

    import plait.interop.hf_model  # noqa: F401  (registers the classes)
    from plait.interop.hf import export_hf
    from plait.model import build
    from plait.model.generation import Generation

    text = "d=32 vocab=41 init=0.3 | (fox[heads=2,qk_norm=per-head,out_gate,out_norm,kv_shift] swiglu)x2"
    model: Any = build(text, seed=3).eval()
    tokens = torch.randint(41, (2, 23), generator=torch.Generator().manual_seed(0))
    disable_progress_bar()
    with TemporaryDirectory(prefix="plait-verify-") as folder, torch.no_grad():
        export_hf(model, None, Path(folder) / "out")
        loaded: Any = AutoModelForCausalLM.from_pretrained(Path(folder) / "out").eval()
        whole = model(tokens)
        gap = float((loaded(tokens).logits - whole).abs().max() / whole.std())
        theirs = loaded.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12)[:, 23:].tolist()
    ours = Generation(model, tokens.tolist(), tokens=12)
    ours.run()
    same = [list(row) for row in ours.rows] == theirs
    return (
        "equal; same tokens",
        f"largest gap {gap:.0e} of the logits' spread; same tokens: {same}",
        same and gap < 1e-5,
    )
