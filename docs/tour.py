"""The tour: `make demo`. Each stop prints what it does, does it, and shows what came out; nothing is canned."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "2")

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn, track
from rich.rule import Rule
from rich.table import Table

out = Console(highlight=False)

HYBRID = "d=512 vocab=50257 tie=true | (gla swiglu gla swiglu fox swiglu)x4"
SMALL = "d=64 vocab=99 | (gla[heads=4] swiglu fox[heads=4] swiglu)x2"
RIVALS = {
    "Transformer": "d=512 vocab=50257 tie=true | (attn swiglu)x12",
    "hybrid, 1 attention in 3": HYBRID,
    "no attention": "d=512 vocab=50257 tie=true | (gla swiglu)x12",
}
CONTEXT = 16_384
TRAINING = 150  # steps
QUIET = not out.is_terminal  # no moving bars in a log
FACTS = ["L03", "P16", "F06", "M10", "E02", "E05"]


def say(text: str) -> None:
    out.print(text, soft_wrap=False)


def describe() -> None:
    """An architecture is one line of text"""
    from plait.arch import architecture
    from plait.cli import show

    say("Layers in order, groups with a count, options in brackets. This is a hybrid: two layers of gated linear")
    say("attention for each of forgetting attention, a SwiGLU behind each. It is costed without being built.\n")
    say(f"[bold cyan]$ plait show '{HYBRID}'[/]\n")
    show.command(HYBRID, seq=1024, memory=0, vocab=None, as_json=False)
    same = architecture(HYBRID.replace("gla", "gla[heads=4]")).hash == architecture(HYBRID).hash
    say(f"\nWritten with a default spelled out (gla\\[heads=4]) it is the same architecture, same hash: {same}.")


def compare() -> None:
    """What would it cost? Three architectures of equal size"""
    from plait.arch.resize import match
    from plait.model.cost import model_cost

    goal = model_cost(RIVALS["Transformer"]).decoder_params
    say("`plait.arch.resize.match` changes inner widths until the decoders agree within 1 %. The bill when token")
    say(f"{CONTEXT:,} is generated:\n")
    table = Table("architecture", box=None, header_style="bold", pad_edge=False)
    for column in ("decoder parameters", "GFLOP a token", "state in bf16"):
        table.add_column(column, justify="right")
    for name, text in RIVALS.items():
        cost = model_cost(match(text, params=goal), seq=1, memory=CONTEXT - 1)
        table.add_row(
            name, f"{cost.decoder_params:,}", f"{cost.flops / 1e9:.3f}", f"{cost.state_bytes(2) / 1e6:.1f} MB"
        )
    out.print(table)


def run() -> None:
    """Build it, teach it to count, generate step by step"""
    import torch

    from plait.model import build, model_cost

    model = build(SMALL, seed=0)
    counted = sum(p.numel() for p in model.parameters())
    say(f"[cyan]{SMALL.replace('[', chr(92) + '[')}[/]")
    say(f"parameters: {counted:,} in the module, {model_cost(SMALL).total_params:,} by formula")
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    draw = torch.Generator().manual_seed(0)
    for _ in track(
        range(TRAINING), "teaching it to count by ones to fours", console=out, transient=True, disable=QUIET
    ):
        start_B1, stride_B1 = torch.randint(99, (16, 1), generator=draw), torch.randint(1, 5, (16, 1), generator=draw)
        tokens = (start_B1 + stride_B1 * torch.arange(33)) % 99
        loss = model.loss(tokens[:, :-1], tokens[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    say(f"taught to count by ones to fours, modulo 99: loss {loss.item():.2f} nats after {TRAINING} steps")
    with torch.no_grad():
        tokens, state = torch.tensor([[60, 63, 66, 69]]), model.init_state(batch=1)
        scores, state = model.extend(tokens, state)  # the prompt at once
        stepwise = [scores]
        for _ in range(16):
            token = stepwise[-1][:, -1].argmax(-1)
            tokens = torch.cat([tokens, token[:, None]], dim=1)
            score, state = model.step(token, state)  # then a token at a time
            stepwise.append(score[:, None])
        gap = (torch.cat(stepwise, dim=1) - model(tokens)).abs().max()
    say(f"60 63 66 69 → {' '.join(map(str, tokens[0, 4:].tolist()))}")
    say(f"scores of 16 steps after the prompt against all 20 tokens at once: largest difference {gap:.1e}")


def check() -> None:
    """Every mixer keeps the same contract, yours too"""
    from plait.check import CLAUSES, load_mixer, run_clauses

    say("[bold cyan]$ plait check gla --no-speed[/]\n")
    options = load_mixer("gla")
    table = Table("clause", "status", "detail", box=None, header_style="bold", pad_edge=False)
    columns = (SpinnerColumn(), TextColumn("{task.completed:.0f} of {task.total} clauses"), TimeElapsedColumn())
    with Progress(*columns, console=out, transient=True, disable=QUIET) as progress:
        bar = progress.add_task("", total=len(CLAUSES))
        for verdict in run_clauses(options):
            table.add_row(verdict.clause, f"[green]{verdict.status}[/]", verdict.detail)
            progress.advance(bar)
    out.print(table)


def verify() -> None:
    """The papers' own numbers"""
    from plait.verify import select

    say(f"[bold cyan]$ plait verify {' '.join(FACTS)}[/]\n")
    table = Table("id", "what", "ours", "status", box=None, header_style="bold", pad_edge=False)
    for fact in track(select(FACTS), "checking", console=out, transient=True, disable=QUIET):
        result = fact.result()
        colour = {"pass": "green", "erratum": "yellow"}.get(result.status, "bold red")
        table.add_row(result.id, result.what, result.ours, f"[{colour}]{result.status}[/]")
    out.print(table)
    say("\nAn erratum is a place where a paper contradicts itself; docs/verify.md explains each.")


STOPS: list[Callable[[], None]] = [describe, compare, run, check, verify]


def main() -> None:
    start = time.perf_counter()
    for number, stop in enumerate(STOPS, start=1):
        out.print()
        out.print(Rule(f"[bold]{number}. {stop.__doc__}[/]", align="left"))
        stop()
    out.print()
    out.print(Rule(f"[bold]What to try next[/] [dim]({time.perf_counter() - start:.0f} s so far)[/]", align="left"))
    say("[cyan].venv/bin/plait show fox-pro-360m --seq 16384[/]          a published architecture, at another length")
    say("[cyan].venv/bin/plait list presets --match striped-hyena[/]     a few of all the published ones")
    say("[cyan].venv/bin/plait new mixer my_mixer.py[/]                  your mixer: see docs/your-mixer.md")
    say("[cyan].venv/bin/plait verify[/]                                 every fact")


if __name__ == "__main__":
    main()
