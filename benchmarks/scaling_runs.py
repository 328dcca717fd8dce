"""Trainings for scaling laws of six architectures on real bytes: IsoFLOP groups as large as the time allows.

    python benchmarks/scaling_runs.py run -o FOLDER [--device cuda] [--workers 8] [--seconds 255] [--have ROWS.csv]
    python benchmarks/scaling_runs.py check [--device cuda]
    python benchmarks/scaling_runs.py speed -o FOLDER [--budgets 1e15 1e16] [--seconds 90]
    python benchmarks/scaling_runs.py join FOLDER -o benchmarks/results/DATE-scaling.csv [--have ROWS.csv]
    plait scale fit benchmarks/results/DATE-scaling.csv --target 1e16

Forecasts and the page of results are made by `scaling_report.py`.

The text is Python: the sources of the standard library and of torch, as the machine has them. A run has a stable rate
and anneals its last fifth (`plait.training.track`). Batch and rate are by the planner's rules (`plait.scaling.sizes`):
one batch for a group, that leaves its largest size 500 steps, and a rate that falls as 1/width, found for each
architecture at the group and width of `SEARCHED`. Steps are captured as CUDA graphs; `--compiled` names architectures
whose blocks are compiled first, which takes seconds of every run and pays for long ones (`speed` measures both). On a
GPU several workers share it: start `nvidia-cuda-mps-control -d` first; `--large` says how many large trainings go at a
time. With `--turns` one of these trains while the next one compiles and waits: that needs no MPS, under which the death
of any process on the GPU is that of all. A row is written when its run has ended, so whatever stops this leaves a
table, and rows of an earlier sitting (`--have`) are not trained again; runs that do not fit into `--seconds` are left
out, or with `--cut` annealed in time. A large run is also annealed where it passes a smaller budget (`PASSED`), and
resumes from before that.
"""

from __future__ import annotations

import argparse
import csv
import multiprocessing
import multiprocessing.connection
import sysconfig
import tempfile
import time
import traceback
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

SEQ_LEN, HELD_OUT = 256, 2**18
WARMUP, DECAY = 30, 0.2
HEAD = 16
RATE_WIDTH, HIGHEST_RATE = 128, 0.02
#: Widths by budget. Bytes want many of them for each parameter: the best sizes are small.
GROUPS = {
    3e12: (32, 48, 64, 16),
    8e12: (48, 64, 32, 96),
    2e13: (64, 96, 48, 128, 32),
    1e14: (96, 128, 64, 192, 48),
    1e15: (96, 128, 192, 256),
    1e16: (256, 320, 384, 448, 512, 640),
    2e16: (320, 384, 448, 512, 640, 768),
    3e16: (1152,),
    1e17: (1024, 1152),  # as wide as leaves the text read about five times, as the widest before
}
SMALL_BATCH = 32  # sequences, below the budget of SEARCHED, where rates are the usual ones too
SEARCHED = (1e14, 96)  # budget and width at which rates are tried
#: Budgets that runs of a larger one pass: they are annealed there as well, and resume. The batch is the rule's for the
#: smallest of them.
PASSED = {1e16: (3e15,), 2e16: (1e16,), 1e17: (3e16,)}
FACTORS = (1.0, 0.5, 2.0)  # of an architecture's usual rate
TELLS = 0.005  # nats: where the best is at the edge and better by more, one further is tried
LARGE = 2e15  # FLOPs from which on few runs go at a time
LEAST_CUT = 0.5  # of its steps that a run which does not fit has, or it gives no row
LEAST_LEFT = (15.0, 90.0)  # seconds with which a small and a large run are begun
LENIENT = 1.15  # a run that is so much too slow in its first half goes on: others end
GRACE = 8.0  # seconds after the end in which a decay under way may end
TELL_EVERY = 10.0  # seconds
LATE = 60.0  # seconds after which a failure is not one of compiling
MOST_RUNS = 4096  # of a sitting
SLACK = 1.3  # what a run may take longer than it should
BUSY = 1.2e12  # FLOPs of a step that take as long as its launches
GDN = f"gated-deltanet[head_dim={HEAD}] swiglu"
#: Name → spec of four blocks, the best rate at width 128 in the truth table, and the milliseconds of a small step, with
#: six others on the same H200. The slowest first.
ARCHITECTURES = {
    "gated DeltaNet 25 %": ("({gdn})x3 attn[heads={heads}] swiglu", 2e-3, 36),
    "Mamba-2": ("(mamba2[head_dim=32,state=64] swiglu)x4", 8e-3, 20),
    "Hyena": ("(hyena swiglu)x4", 2e-3, 22),
    "StripedHyena 25 %": ("(hyena swiglu)x3 attn[heads={heads}] swiglu", 2e-3, 20),
    "FoX": ("(fox[heads={heads}] swiglu)x4", 2e-3, 13),
    "Transformer++": ("(attn[heads={heads}] swiglu)x4", 1e-3, 10),
}
COLUMNS = ("architecture", "flops", "params", "tokens", "loss", "state", "attention", "batch", "steps", "lr", "budget",
           "vocab", "data", "train_seconds", "spec", "date")  # fmt: skip
Row = tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """One run but for its rate: `usual` times a factor. `group` is its budget before a rehearsal shrank it."""

    name: str
    spec: str
    width: int
    group: float
    budget: float
    usual: float
    token_flops: float
    batch: int

    @property
    def steps(self) -> int:
        return max(1, round(self.budget / self.token_flops / (self.batch * SEQ_LEN)))

    @property
    def seconds(self) -> float:
        """About: launches, and products beyond what they hide."""
        work = self.batch * SEQ_LEN * self.token_flops / BUSY
        return self.steps * ARCHITECTURES[self.name][2] / 1000 * (1 + work)


def jobs(budgets: list[float], shrink: float = 1.0) -> list[Job]:
    """All runs, group by group; `shrink` divides the budgets, for a rehearsal."""
    from plait.model.architecture import architecture
    from plait.scaling.sizes import LEAST_STEPS, batch_tokens, token_flops

    found = []
    for budget, widths in ((budget, widths) for budget, widths in GROUPS.items() if budget in budgets):
        costs = {}
        for name, (body, rate, _) in ARCHITECTURES.items():
            for width in widths:
                spec = f"d={width} vocab=256 tie=true | " + body.format(gdn=GDN, heads=max(1, width // HEAD))
                costs[name, width] = (spec, token_flops(architecture(spec), SEQ_LEN), rate * RATE_WIDTH / width)
        flops = budget / shrink
        shortest = min(flops / each for _, each, _ in costs.values())
        ruled = min(batch_tokens(each / shrink) for each in (budget, *PASSED.get(budget, ())))
        batch = max(1, int(min(ruled, shortest / LEAST_STEPS)) // SEQ_LEN)
        batch -= batch % 8 if batch > 8 else 0
        batch = SMALL_BATCH if budget < SEARCHED[0] else batch
        for width in widths:
            found += [Job(name, costs[name, width][0], width, budget, flops, costs[name, width][2],
                          costs[name, width][1], batch) for name in ARCHITECTURES]  # fmt: skip
    return found


def rate_of(job: Job, factor: float) -> float:
    return min(HIGHEST_RATE, factor * job.usual)


def python_sources() -> tuple[np.ndarray, np.ndarray]:
    """Training and validation bytes; every 50th file, by its hash, is validation."""
    import torch

    roots = [Path(sysconfig.get_path("stdlib")), Path(torch.__file__).parent]
    parts: dict[bool, list[bytes]] = {True: [], False: []}
    for root in roots:
        for path in sorted(root.rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if "site-packages" in name or "dist-packages" in name or not path.is_file():
                continue
            held = int(sha256(name.encode()).hexdigest(), 16) % 50 == 0
            parts[held].append(path.read_bytes() + b"\n")
    train, validation = (np.frombuffer(b"".join(parts[held]), np.uint8) for held in (False, True))
    return train, validation


def text_of(path: Path, held_out: int) -> tuple[Any, int]:
    """A text and how many of its scored windows are held out. As many as half of them follow from the training text: a
    model that knows it by heart does better there."""
    from plait.training.track import Text

    kept = np.load(path)
    held = windows(kept["validation"], held_out)
    rows = np.concatenate([held, windows(kept["train"], held_out // 2)])
    return Text(kept["train"], rows[:, :-1], rows[:, 1:]), len(held)


def windows(tokens: np.ndarray, wanted: int) -> np.ndarray:
    """Windows from all over a text, with so many targets together or all it has."""
    there = (len(tokens) - 1) // SEQ_LEN
    taken = np.linspace(0, there, min(there, wanted // SEQ_LEN), endpoint=False).astype(np.int64)
    return np.asarray(tokens[taken[:, None] * SEQ_LEN + np.arange(SEQ_LEN + 1)].astype(np.int64))


def track_of(job: Job, lr: float, text: Any, options: argparse.Namespace, compiled: bool) -> Any:
    """A training of one model whose step is captured as a graph on a GPU, its blocks compiled before that or not."""
    from plait.model.architecture import architecture
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Track, track_recipe

    recipe = track_recipe(Recipe(batch=job.batch, seq_len=SEQ_LEN), WARMUP)
    track = Track(architecture(job.spec), [Replica(lr, 0)], [text], recipe, device=options.device, compiled=False)
    track.optimizer = replace(track.optimizer, fused=not options.unfused)
    if compiled:
        compile_blocks(track)
    return track


def compile_blocks(track: Any) -> None:
    """Compile the blocks of a track before its first step, for whole batches only: a capture first reads a single row,
    which would be compiled as well. On a GPU the compiled blocks call the hand-written kernels, as they do for
    sequences longer than these."""
    import torch

    from plait.model.compiled_blocks import compile_blocks as compile_backbone
    from plait.ops import attention, delta, gla, shortconv

    delta.LONGEST_IN_GRAPH = gla.LONGEST_IN_GRAPH = shortconv.LONGEST_IN_GRAPH = attention.LONGEST_PLAIN = 0
    on_gpu = track.device.type == "cuda"
    backbone, stepper = track.template.model.backbone, track._stepper
    compile_backbone(
        backbone, SEQ_LEN, torch.bfloat16 if on_gpu else torch.float32, "inductor" if on_gpu else "aot_eager"
    )
    regions, loss = backbone.regions, stepper._loss

    def loss_of_whole_batches(params: Any, tokens_BT: Any, targets_BT: Any) -> Any:
        backbone.regions = regions if len(tokens_BT) > 1 else ()
        return loss(params, tokens_BT, targets_BT)

    def score(*given: Any) -> Any:
        backbone.regions = ()  # no second graph, for the few passes without gradients
        return scored(*given)

    scored, stepper._loss, track.score = track.score, loss_of_whole_batches, score


class OutOfTime(Exception):
    pass


def train(
    job: Job, factor: float, compiled: bool, place: int, given: tuple[Any, int], options: argparse.Namespace
) -> Row | str:
    """Its row; or why there is none. Rows are written as they come. With `--cut` a large run that does not fit is
    annealed in time, and is of what FLOPs it has had by then."""
    lr, started = rate_of(job, factor), time.time()
    text, held_out = given
    track = track_of(job, lr, text, options, compiled)
    track.advance_to(4)
    told(f"{job.name} d={job.width} {job.budget:.0e}: 4 steps after {time.time() - started:.1f} s", options)
    while options.turns and job.group > LARGE and not all(options.ended[:place]):
        time.sleep(0.1)
    began, steps = time.time(), job.steps

    def in_time(step: int) -> None:
        if time.time() > options.stop:
            raise OutOfTime

    def annealed(steps: int) -> float:
        loss_N = track.annealed(steps, decay_steps(steps), in_time)[0]
        loss, seen = float(loss_N[:held_out].mean()), float(loss_N[held_out:].mean())
        told(f"{job.name} d={job.width}: {steps} steps, loss {loss:.4f}, on bytes trained on {seen:.4f}", options)
        return loss

    passed = [replace(job, group=each, budget=each / options.shrink) for each in PASSED.get(job.group, ())]
    pause, recent, before, told_at = 0.0, began, track.step, began
    while track.step < steps - decay_steps(steps):
        stops = [each.steps - decay_steps(each.steps) for each in passed]
        track.advance_to(min([steps - decay_steps(steps), *stops, track.step + max(8, job.steps // 100)]))
        now = time.time()
        each = max((now - began - pause) / max(1, track.step - 4), (now - recent) / max(1, track.step - before))
        recent, before = now, track.step
        left = (options.until - now) / each  # in steps
        if job.group > LARGE and now > told_at + TELL_EVERY:
            told(f"{job.name} d={job.width} {job.budget:.0e}: step {track.step}, {1000 * each:.1f} ms each", options)
            told_at = now
        if options.cut and job.group > LARGE:
            cut = round(track.step / (1 - DECAY))  # the decay is still a fifth of all
            if track.step + LENIENT * left < LEAST_CUT * job.steps:
                if not passed or track.step + left < passed[0].steps:
                    return f"less than half of {job.steps} steps of {1000 * each:.1f} ms fits"
                job, passed = passed[0], passed[1:]  # the smaller budget alone
                steps = job.steps
                continue
            if left < cut - track.step + job.steps // 50 < steps - track.step:
                steps = cut
        elif left < (steps - track.step) / (LENIENT if track.step < steps // 2 else 1):
            return f"{job.steps} steps of {1000 * each:.1f} ms do not fit"
        if stops and track.step == stops[0]:
            small = passed.pop(0)
            fits = left > steps - track.step
            if options.straight or (options.cut and fits and left < steps - track.step + decay_steps(small.steps)):
                continue  # the whole run may fit if it does not anneal here
            row = row_of(small, annealed(small.steps), lr, small.steps, track.tokens_per_step, time.time() - began)
            write_row(row, options)
            pause += time.time() - recent
            recent = time.time()
    row = row_of(job, annealed(steps), lr, steps, track.tokens_per_step, time.time() - began)
    write_row(row, options)
    return row


def decay_steps(steps: int) -> int:
    return max(1, round(DECAY * steps))


def row_of(job: Job, loss: float, lr: float, steps: int, tokens_per_step: int, seconds: float) -> Row:
    """A run that was cut is of a budget of its own."""
    from plait.model.architecture import architecture
    from plait.model.cost import model_cost
    from plait.scaling.sizes import attention_share

    arch = architecture(job.spec)
    cost, tokens = model_cost(arch, seq=SEQ_LEN), steps * tokens_per_step
    budget = job.budget if steps == job.steps else tokens * job.token_flops
    values = (
        job.name, tokens * job.token_flops, cost.active_params, tokens, loss, cost.fixed_state + cost.kv_cache,
        attention_share(arch), tokens_per_step, steps, lr, budget, 256, "python sources",
        round(seconds, 2), job.spec, time.strftime("%Y-%m-%d", time.gmtime()),
    )  # fmt: skip
    return tuple(str(value) for value in values)


def write_row(row: Row, options: argparse.Namespace) -> None:
    """Several processes append to one file, a line at a time."""
    with (options.out / "rows.csv").open("a", newline="", encoding="utf-8") as file:
        csv.writer(file).writerow(row)


def told(line: str, options: argparse.Namespace) -> None:
    print(f"{time.time() - options.began:4.0f} s {line}", flush=True)


def work(pipe: Any, options: argparse.Namespace) -> None:
    """Trains what comes through the pipe, and sends rows back. After an error of the device a process is no good."""
    import torch

    from plait.ops.paths import plain_ops

    torch.set_num_threads(1)
    text = text_of(options.text, options.held_out)
    pipe.send(None)
    while (asked := pipe.recv()) is not None:
        job, factor, compiled, place = asked
        try:
            with plain_ops() if options.plain and options.plain in job.spec else nullcontext():
                found = train(job, factor, compiled, place, text, options)
        except OutOfTime:
            found = "ran out of time"
        except Exception:
            found = f"failed:\n{traceback.format_exc()[-1500:]}"
        pipe.send(found)
        if isinstance(found, str) and "CUDA" in found:
            return
        torch.cuda.empty_cache() if options.device == "cuda" else None


class Sitting:
    """What has been trained, what is under way, and what comes next."""

    def __init__(self, options: argparse.Namespace, rows: list[Row]) -> None:
        self.options, self.rows = options, rows
        budgets = [float(each) for each in options.budgets] or [budget for budget in GROUPS if budget >= SEARCHED[0]]
        self.waiting: list[tuple[Job, float | None]] = []  # None: the architecture's best factor
        self.at: dict[tuple[str, str], Job] = {}
        self.under_way: dict[int, tuple[Job, float]] = {}
        searched = (SEARCHED[0] / options.shrink, SEARCHED[1])
        for job in jobs(sorted({*budgets, SEARCHED[0]}), options.shrink):
            if (job.budget, job.width) == searched:
                self.at[job.name, "search"] = job
                self.waiting += [(job, f) for f in (*FACTORS, *self.further(job)) if self.row(job, f) is None]
            elif job.group in budgets:
                self.waiting.append((job, None))
        self.waiting = [(j, f) for j, f in self.waiting if f is not None or not self.has(j)]
        self.waiting.sort(key=lambda each: (each[1] is None, each[0].budget > 2e15, -each[0].seconds))
        if options.runs:
            wanted = [each for name in options.runs for each in self.named(name)]
            self.waiting = [(j, f) for j, f in wanted if not (self.has(j) if f is None else self.row(j, f))]
        self.failed: dict[Job, float] = {}  # → after how many seconds
        self.paces: list[float] = []  # seconds taken over those foretold

    def named(self, name: str) -> list[tuple[Job, float | None]]:
        """`ARCHITECTURE@WIDTH@BUDGET`, `@FACTOR` where the rate is not the best one found, and `@TOKENS` per step where
        they are not the rule's."""
        architecture, width, budget, *more = name.split("@")
        given = float(more[0]) if more else None
        group = jobs([float(budget)], self.options.shrink)
        if len(more) > 1:
            group = [replace(job, batch=int(more[1]) // SEQ_LEN) for job in group]
        found = [(job, given) for job in group if (job.name, job.width) == (architecture, int(width))]
        if not found:
            raise SystemExit(f"--runs {name}: no such run in GROUPS and ARCHITECTURES")
        return found

    def compiled(self, job: Job) -> bool:
        """Large runs are, but not where that has failed: small ones end before it would have paid."""
        large = job.group > LARGE
        return large and job.name in self.options.compiled and self.failed.get(job, LATE) >= LATE

    def after_failure(self, job: Job, factor: float, seconds: float) -> None:
        """A run that failed is tried once more; if that was soon, without being compiled."""
        if job not in self.failed:
            self.failed[job] = seconds
            self.waiting.insert(0, (job, factor))

    def row(self, job: Job, factor: float) -> Row | None:
        def same(row: Row) -> bool:
            near = abs(float(row[10]) / job.budget - 1) < 1e-6 and abs(float(row[9]) / rate_of(job, factor) - 1) < 1e-6
            return near and (row[0], row[14], int(row[7])) == (job.name, job.spec, job.batch * SEQ_LEN)

        return next((row for row in self.rows if same(row)), None)

    def has(self, job: Job) -> bool:
        factor = self.best(job)
        return factor is not None and self.row(job, factor) is not None

    def best(self, job: Job) -> float | None:
        """The factor of the architecture's usual rate that was best; None while the search is under way."""
        search = self.at.get((job.name, "search"))
        if job.group < SEARCHED[0]:
            return 1.0
        if search is None:
            return None
        losses = {f: float(row[4]) for f in FACTORS if (row := self.row(search, f)) is not None}
        if len(losses) < len(FACTORS):
            return None
        best = min(losses, key=lambda f: losses[f])
        if best != 1.0 and losses[1.0] - losses[best] > TELLS:  # at the edge: one further
            further = best * best
            if (row := self.row(search, further)) is None:
                return None
            best = further if float(row[4]) < losses[best] - TELLS else best
        return best

    def further(self, job: Job) -> list[float]:
        """The factor beyond the edge, where that is wanted and not yet known."""
        losses = {f: float(row[4]) for f in FACTORS if (row := self.row(job, f)) is not None}
        best = min(losses, key=lambda f: losses[f], default=1.0)
        wanted = len(losses) == len(FACTORS) and best != 1.0 and losses[1.0] - losses[best] > TELLS
        return [best * best] if wanted and self.row(job, best * best) is None else []

    def next(self) -> tuple[Job, float] | None:
        """The longest that can be trained now and fits; rates first."""
        large = sum(job.group > LARGE for job, _ in self.under_way.values())
        left = self.options.until - time.time()
        pace = float(np.median(self.paces)) if self.paces else 1.0
        for place, (job, given) in enumerate(self.waiting):
            factor = self.best(job) if given is None else given
            done = factor is not None and self.row(job, factor) is not None
            if factor is None or done or (job.group > LARGE and large >= self.options.large):
                continue
            if left < LEAST_LEFT[job.group > LARGE]:
                continue
            if self.options.device == "cuda" and not self.options.runs and SLACK * pace * job.seconds > left:
                continue
            del self.waiting[place]
            return job, factor
        return None


def run(options: argparse.Namespace) -> None:
    options.began = began = time.time()
    options.until, options.stop = began + options.seconds, began + options.seconds + GRACE
    options.out.mkdir(parents=True, exist_ok=True)
    options.text = Path(tempfile.mkdtemp()) / "text.npz"
    context = multiprocessing.get_context("spawn")
    bytes_, validation = python_sources()
    np.savez(options.text, train=bytes_[: options.most_text], validation=validation)
    digests = " and ".join(sha256(each.tobytes()).hexdigest()[:12] for each in (bytes_, validation))
    print(f"{len(bytes_):,} bytes to train on, {len(validation):,} held out, sha256 {digests}", flush=True)
    sitting = Sitting(options, read_rows(options.have))
    print(f"{len(sitting.rows)} rows are there, {len(sitting.waiting)} wanted", flush=True)
    options.ended = context.Array("b", MOST_RUNS)
    workers: dict[Any, tuple[int, Any]] = {}

    def start(number: int) -> None:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs, options), daemon=True)
        process.start()
        theirs.close()
        workers[ours] = (number, process)

    for number in range(options.workers):
        start(number)
    idle: set[Any] = set()
    started = options.workers
    places, begun = dict[int, int](), dict[int, float]()  # a process → which run of the sitting it has, and since when
    while sitting.under_way or (sitting.waiting and time.time() < options.until):
        for pipe in list(idle):
            if (given := sitting.next()) is not None:
                number, _ = workers[pipe]
                sitting.under_way[number] = given
                places[number], begun[number] = max(places.values(), default=-1) + 1, time.time()
                pipe.send((*given, sitting.compiled(given[0]), places[number]))
                idle.remove(pipe)
        if workers and len(idle) == len(workers):
            break  # nothing that waits can be trained
        for pipe in multiprocessing.connection.wait([p for p in workers if p not in idle], timeout=1.0):
            number, process = workers[pipe]
            try:
                found = pipe.recv()
            except EOFError:
                found = "failed: the process ended"
            given = sitting.under_way.pop(number, None)
            if given is not None:
                options.ended[places[number]] = True
                job, factor = given
                words = found if isinstance(found, str) else f"loss {float(found[4]):.4f} {found[13]} s"
                print(f"{time.time() - began:4.0f} s {job.name:20s} d={job.width} {job.budget:.0e} ×{factor:g} "
                      f"{job.steps} × {job.batch}: {words}", flush=True)  # fmt: skip
                if isinstance(found, tuple):
                    sitting.rows.append(found)
                    sitting.paces.append(float(found[13]) / job.seconds)
                    if sitting.at[job.name, "search"] == job and factor in FACTORS:
                        sitting.waiting[:0] = [(job, each) for each in sitting.further(job)]
                if isinstance(found, str) and found.startswith("failed"):
                    sitting.after_failure(job, factor, time.time() - begun[number])
            if isinstance(found, str) and ("CUDA" in found or "process ended" in found):
                del workers[pipe]
                if started < 2 * options.workers:
                    start(started)
                    started += 1
            else:
                idle.add(pipe)
    # None is ended from outside: a process that dies inside a kernel takes all others of its MPS server with it.
    for pipe, (_, process) in workers.items():
        with suppress(OSError):
            pipe.send(None)
        process.join(timeout=20)
    options.text.unlink()
    print(f"done after {time.time() - began:.0f} s, {len(sitting.waiting)} left", flush=True)


def read_rows(paths: list[Path]) -> list[Row]:
    return [
        tuple(row) for path in paths for row in csv.reader(path.open(encoding="utf-8")) if row and row[0] != COLUMNS[0]
    ]


def check(options: argparse.Namespace) -> None:
    """A captured step with its fused update does what it does one operation after the other: losses of each."""
    from plait.model.architecture import architecture
    from plait.training.recipe import Recipe
    from plait.training.track import Replica, Text, Track, track_recipe

    drawn = np.random.default_rng(0).integers(0, 256, 2**16)
    rows = drawn[: 16 * (SEQ_LEN + 1)].reshape(16, -1)
    text = Text(drawn.astype(np.uint8), rows[:, :-1], rows[:, 1:])
    recipe = track_recipe(Recipe(batch=8, seq_len=SEQ_LEN), 4)
    for name, (body, rate, _) in ARCHITECTURES.items():
        if options.only and name not in options.only:
            continue
        arch = architecture("d=64 vocab=256 tie=true | " + body.format(gdn=GDN, heads=2))
        found = []
        for quick in (True, False):
            track = Track(arch, [Replica(rate, 0)], [text], recipe, device=options.device, compiled=False)
            track._stepper.captured &= quick
            track.optimizer = replace(track.optimizer, fused=quick)
            found.append([float(track.advance_to(step)[0]) for step in range(1, 9)])
        gap = max(abs(a - b) for a, b in zip(*found, strict=True))
        print(f"captured against not, {name}: losses {found[0][0]:.4f} … {found[0][-1]:.4f}, gap {gap:.1e}", flush=True)
        if not gap < 0.02:
            raise SystemExit(1)


def speed(options: argparse.Namespace) -> None:
    """Milliseconds of a step as captured, and with compiled blocks, of the largest size of each architecture; each
    compiling in a process of its own and timed while none of the others is."""
    options.until = time.time() + options.seconds
    options.out.mkdir(parents=True, exist_ok=True)
    wanted = {}
    for job in jobs([float(each) for each in options.budgets], options.shrink):
        wanted.setdefault((job.name, job.budget), []).append(job)
    context = multiprocessing.get_context("spawn")
    lock = context.Lock()
    groups = [[max(each, key=lambda job: job.width) for (name, _), each in wanted.items() if name == one]
              for one in ARCHITECTURES if not options.only or one in options.only]  # fmt: skip
    processes = [context.Process(target=time_steps, args=(group, lock, options), daemon=True) for group in groups]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout=max(1.0, options.until + 20 - time.time()))
    print("".join(sorted(path.read_text(encoding="utf-8") for path in options.out.glob("speed-*.txt"))), flush=True)


def time_steps(group: list[Job], lock: Any, options: argparse.Namespace) -> None:
    import torch

    from plait.training.track import Text

    torch.set_num_threads(1)
    drawn = np.random.default_rng(0).integers(0, 256, 2**20)
    rows = drawn[: 16 * (SEQ_LEN + 1)].reshape(16, -1)
    text = Text(drawn.astype(np.uint8), rows[:, :-1], rows[:, 1:])
    found = options.out / f"speed-{list(ARCHITECTURES).index(group[0].name)}.txt"
    for compiled in (False, True):
        for job in group:
            if time.time() > options.until - 10:
                return
            began = time.time()
            try:
                track = track_of(job, 1e-4, text, options, compiled)
                first = float(track.advance_to(1)[0])
                ready = time.time() - began
                with lock:
                    track.advance_to(4)
                    began = time.time()
                    last = float(track.advance_to(4 + options.steps)[0])
                    each = (time.time() - began) / options.steps
                work = job.batch * SEQ_LEN * job.token_flops
                told = f"{1000 * each:.2f} ms, {work / each / 1e12:.0f} TFLOP/s, {job.steps * each:.0f} s for all "
                told += f"{job.steps} steps, first step after {ready:.1f} s, losses {first:.4f} {last:.4f}"
                del track
            except Exception:
                told = f"failed: {traceback.format_exc()[-800:]}"
            with found.open("a", encoding="utf-8") as file:
                file.write(f"{job.name:20s} d={job.width} {job.budget:.0e} batch {job.batch} "
                           f"{'compiled' if compiled else 'captured'}: {told}\n")  # fmt: skip
            torch.cuda.empty_cache() if options.device == "cuda" else None


def join(options: argparse.Namespace) -> None:
    """One row for each run, that of the best of the rates; with `--rates` all of them in another file."""
    rows = read_rows([*options.have, *sorted(options.folder.glob("rows*.csv"))])
    order = list(ARCHITECTURES)
    rows.sort(key=lambda row: (order.index(row[0]), float(row[10]), float(row[2]), float(row[4])))
    best = {(row[0], row[10], row[14]): row for row in reversed(rows)}
    for path, kept in ((options.out, list(reversed(best.values()))), (options.rates, rows)):
        if path is not None:
            with path.open("w", newline="", encoding="utf-8") as file:
                csv.writer(file, lineterminator="\n").writerows([COLUMNS, *dict.fromkeys(kept)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    running = verbs.add_parser("run")
    running.add_argument("-o", "--out", type=Path, required=True)
    running.add_argument("--device", default="cuda")
    running.add_argument("--workers", type=int, default=8)
    running.add_argument("--large", type=int, default=8, help=f"runs above {LARGE:.0e} FLOPs at a time")
    running.add_argument("--seconds", type=float, default=255)
    running.add_argument("--budgets", nargs="*", default=[], help=f"groups; those from {SEARCHED[0]:.0e} FLOPs on")
    running.add_argument("--have", nargs="*", type=Path, default=[], help="rows that are not trained again")
    running.add_argument("--shrink", type=float, default=1.0, help="divide all budgets, for a rehearsal")
    running.add_argument(
        "--runs", nargs="*", default=[], help="these alone, in order: ARCHITECTURE@WIDTH@BUDGET[@FACTOR[@TOKENS]]"
    )
    running.add_argument(
        "--cut", action="store_true", help="anneal large runs that do not fit in time, with fewer FLOPs"
    )
    running.add_argument("--straight", action="store_true", help="anneal at budgets passed only if no more fits")
    running.add_argument("--turns", action="store_true", help="one large run trains, the next is compiled meanwhile")
    running.add_argument("--compiled", nargs="*", default=[], help="architectures whose blocks are compiled")
    running.add_argument("--unfused", action="store_true", help="update one parameter after the other")
    running.add_argument("--plain", default="", help="a mixer that is trained without its own kernels")
    running.add_argument("--held-out", type=int, default=HELD_OUT, help="bytes that are scored")
    running.add_argument("--most-text", type=int, default=2**27, help="bytes")
    checking = verbs.add_parser("check")
    checking.add_argument("--device", default="cuda")
    checking.add_argument("--only", nargs="*", default=[])
    timing = verbs.add_parser("speed")
    timing.add_argument("-o", "--out", type=Path, required=True)
    timing.add_argument("--device", default="cuda")
    timing.add_argument("--budgets", nargs="*", default=["1e15", "1e16"])
    timing.add_argument("--only", nargs="*", default=[])
    timing.add_argument("--seconds", type=float, default=90)
    timing.add_argument("--steps", type=int, default=20)
    timing.add_argument("--shrink", type=float, default=1.0)
    timing.add_argument("--unfused", action="store_true")
    joining = verbs.add_parser("join")
    joining.add_argument("folder", type=Path)
    joining.add_argument("--have", nargs="*", type=Path, default=[])
    joining.add_argument("-o", "--out", type=Path, required=True)
    joining.add_argument("--rates", type=Path)
    options = parser.parse_args()
    {"run": run, "check": check, "speed": speed, "join": join}[options.verb](options)


if __name__ == "__main__":
    main()
