"""The loop: what a step computes, and that stopping and going on changes nothing."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import pytest
import torch

from plait.core.errors import UserError
from plait.training import checkpoint
from plait.training import trainer as trainer_module
from plait.training.distributed import Processes
from plait.training.recipe import OPTIMIZERS
from plait.training.resume import restore_trainer, save_trainer
from plait.training.trainer import MOST_SKIPPED, Trainer, seed_dropout

sys.path.insert(0, str(Path(__file__).parent))
from small_job import SPECS, small_job

ALONE = Processes(0, 1, torch.device("cpu"))


def trained(job, steps=None, **options):
    trainer = Trainer(job, job.steps, ALONE, **options)
    return trainer, [trainer.advance().loss for _ in range(steps or job.steps)]


def test_a_step_is_adamw_on_the_mean_loss_of_the_batch():
    job = small_job(steps=3, warmup=0, clip=0.0, weight_decay=0.1)
    trainer = Trainer(job, 3, ALONE)
    plain = Trainer(job, 3, ALONE).model
    optimizer = torch.optim.AdamW(plain.parameters(), lr=1e-2, betas=(0.9, 0.95), weight_decay=0.0)
    for step in range(3):
        batch = trainer.batches(step)
        for group in optimizer.param_groups:
            group["lr"] = 1e-2 * 0.5 * (1 + math.cos(math.pi * step / 3))
        loss = plain.loss(batch.tokens_BT, batch.targets_BT)
        loss.backward()
        with torch.no_grad():
            for name, p in plain.named_parameters():
                if p.dim() == 2:
                    p.mul_(1 - optimizer.param_groups[0]["lr"] * 0.1)
                assert name
        optimizer.step()
        optimizer.zero_grad()
        assert trainer.advance().loss == pytest.approx(loss.item(), abs=1e-6)
    for (name, ours), (_, theirs) in zip(trainer.model.named_parameters(), plain.named_parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", ["attn", "encoder", "moe", "xl"])
def test_accumulation_changes_nothing(kind):
    _, whole = trained(small_job(kind, steps=4))
    _, parts = trained(small_job(kind, steps=4, gradient_accumulation=2))
    # Experts balance their load within each part, so their own loss differs a little.
    assert parts == pytest.approx(whole, abs=2e-3 if kind == "moe" else 1e-5)


def test_recomputed_activations_change_nothing():
    for kind in ("attn", "xl"):
        _, kept = trained(small_job(kind, steps=4, dropout=0.2))
        _, again = trained(small_job(kind, steps=4, dropout=0.2), activation_checkpointing=True)
        assert again == pytest.approx(kept, abs=1e-6)


@pytest.mark.parametrize("kind", SPECS)
@pytest.mark.parametrize("optimizer", ["adamw", "lamb", "sgd"])
def test_resume_is_bit_identical(kind, optimizer, tmp_path):
    job = small_job(kind, steps=8, dropout=0.1, optimizer=optimizer)
    straight, losses = trained(job)
    first, before = trained(job, steps=5)
    save_trainer(first, tmp_path, {})
    second = Trainer(job, 8, ALONE)
    restore_trainer(second, checkpoint.newest_checkpoint(tmp_path))
    after = [second.advance().loss for _ in range(3)]
    assert before + after == losses
    for (name, a), (_, b) in zip(straight.model.named_parameters(), second.model.named_parameters(), strict=True):
        assert torch.equal(a, b), name


@pytest.mark.parametrize("optimizer", sorted(OPTIMIZERS))
def test_the_whole_state_of_every_optimizer_is_restored(optimizer, tmp_path):
    """What `state_dict` has, tensors and numbers, and groups' own values; so the next steps are the same bits."""
    job = small_job(steps=6, optimizer=optimizer, weight_decay=0.01)
    _, losses = trained(job)
    first, before = trained(job, steps=3)
    first.optimizer.param_groups[0]["own"] = 0.25
    save_trainer(first, tmp_path, {})
    second = Trainer(job, 6, ALONE)
    restore_trainer(second, checkpoint.newest_checkpoint(tmp_path))
    ours, theirs = second.optimizer.state_dict(), first.optimizer.state_dict()
    assert ours["param_groups"] == theirs["param_groups"]
    assert ours["state"].keys() == theirs["state"].keys()
    for at, state in theirs["state"].items():
        assert ours["state"][at].keys() == state.keys()
        assert all(torch.equal(torch.as_tensor(ours["state"][at][key]), torch.as_tensor(state[key])) for key in state)
    assert before + [second.advance().loss for _ in range(3)] == losses


def test_numbers_that_are_no_tensors_are_restored(tmp_path):
    class Counting(torch.optim.SGD):
        def step(self):
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    self.state[p]["count"] = self.state[p].get("count", 0) + 1

    job = small_job(steps=4)
    first, second = Trainer(job, 4, ALONE), Trainer(job, 4, ALONE)
    for trainer in (first, second):
        trainer.optimizer = Counting(trainer.model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(3):
        first.advance()
    save_trainer(first, tmp_path, {})
    restore_trainer(second, checkpoint.newest_checkpoint(tmp_path))
    counts = {second.optimizer.state[p]["count"] for p in second.model.parameters()}
    assert counts == {3}
    assert first.advance().loss == second.advance().loss


def test_a_checkpoint_of_two_moments_still_loads(tmp_path):
    """As they were written before every optimizer's state was kept."""
    job = small_job(steps=6)
    _, losses = trained(job)
    first, before = trained(job, steps=3)
    pieces = {}
    for name, p in first.model.named_parameters():
        state = first.optimizer.state[p]
        held = {"params": p, "exp_avg": state["exp_avg"], "exp_avg_sq": state["exp_avg_sq"]}
        pieces |= {f"{kind}/{name}": checkpoint.Piece.whole(value) for kind, value in held.items()}
    plain = {"trainer": {"updates": 3, "skipped_in_a_row": 0}}
    checkpoint.save_checkpoint(tmp_path, 3, pieces, plain, ALONE)
    second = Trainer(job, 6, ALONE)
    restore_trainer(second, checkpoint.newest_checkpoint(tmp_path))
    assert before + [second.advance().loss for _ in range(3)] == losses


def test_every_seed_step_and_process_has_dropout_of_its_own():
    def draws(*which: int) -> tuple[float, ...]:
        seed_dropout(*which, torch.device("cpu"))
        return tuple(torch.rand(4).tolist())

    places = [(seed, step, rank) for seed in (0, 1) for step in (0, 1) for rank in (0, 1)]
    assert [draws(*place) for place in places] == [draws(*place) for place in places]
    assert len({draws(*place) for place in places}) == len(places)


def test_dropout_is_on_in_training_only():
    job = small_job(steps=2, dropout=0.5, attn_dropout=0.5)
    trainer = Trainer(job, 2, ALONE)
    batch = trainer.batches(0)
    torch.manual_seed(0)
    first = trainer.objective(batch.tokens_BT, batch.targets_BT)[0].item()
    torch.manual_seed(1)
    assert trainer.objective(batch.tokens_BT, batch.targets_BT)[0].item() != first
    assert trainer.validation_loss() == trainer.validation_loss()
    assert trainer.objective.training


def test_held_out_loss_is_the_mean_over_windows_in_order():
    job = small_job(steps=1, validation=24 * 8)
    trainer = Trainer(job, 1, ALONE)
    tokens = torch.from_numpy(job.corpus.tokens("validation")[: 24 * 8 + 1].astype("int64"))
    x, y = tokens[:-1].reshape(8, 24), tokens[1:].reshape(8, 24)
    with torch.no_grad():
        wanted = float(trainer.model.loss(x, y))
    assert trainer.validation_loss() == pytest.approx(wanted, abs=1e-5)


def test_a_small_batch_is_validated_in_few_passes(monkeypatch):
    """As many passes as a large batch needs, and the same loss."""
    job = small_job(steps=1, validation=24 * 90, batch=2)
    trainer, passes = Trainer(job, 1, ALONE), []
    trainer.objective.register_forward_pre_hook(lambda _, inputs: passes.append(inputs[0].shape[0]))
    together = trainer.validation_loss()
    assert passes == [42, 42, 6]  # of 24 tokens each
    monkeypatch.setattr(trainer_module, "TOKENS_AT_ONCE", 1)
    assert trainer.validation_loss() == pytest.approx(together, abs=1e-6)
    assert passes[3:] == [2] * 45


def test_held_out_loss_with_memory_reads_on():
    """With memory as long as a window, a window is scored with the one before it in sight: nearer to one long pass."""
    job = small_job("xl", steps=1, validation=24 * 8, batch=2)
    trainer = Trainer(job, 1, ALONE)
    tokens = torch.from_numpy(job.corpus.tokens("validation")[: 24 * 8 + 1].astype("int64"))
    x, y = tokens[:-1].reshape(2, 4, 24), tokens[1:].reshape(2, 4, 24)
    memory, total = trainer.model.init_memory(2, 12), 0.0
    trainer.model.eval()
    with torch.no_grad():
        for n in range(4):
            loss, memory = trainer.model.loss_with_memory(x[:, n], y[:, n], memory)
            total += float(loss) / 4
    assert trainer.validation_loss() == pytest.approx(total, abs=1e-5)


def test_steps_that_are_not_finite_are_skipped_then_refused():
    job = small_job(steps=100)
    trainer = Trainer(job, 100, ALONE)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    with torch.no_grad():
        trainer.model.backbone.final_norm.weight.fill_(math.inf)
    taken = trainer.advance()
    assert taken.skipped
    assert trainer.updates == 0
    for name, p in trainer.model.named_parameters():
        assert name == "backbone.final_norm.weight" or torch.equal(p, before[name])
    for _ in range(MOST_SKIPPED - 2):
        trainer.advance()
    with pytest.raises(UserError, match=f"not been finite for {MOST_SKIPPED} steps.*--lr"):
        trainer.advance()


@pytest.mark.parametrize(
    ("kind", "values", "part"),
    [
        ("attn", {"batch": 6, "gradient_accumulation": 4}, "choose a multiple of 4"),
        ("encoder", {"memory": 8}, "memory=8 is for causal language models"),
        ("attn", {"memory": 8}, "segment memory is for xl-attn"),
    ],
)
def test_what_cannot_go_together_is_said(kind, values, part):
    with pytest.raises(UserError, match=part):
        Trainer(small_job(kind, **values), 12, ALONE).advance()


def test_a_masked_batch_has_something_to_predict_in_every_part():
    job = small_job("encoder", steps=12, batch=4, seq_len=3, gradient_accumulation=4)
    trainer = Trainer(job, job.steps, ALONE)
    assert not any(trainer.advance().skipped for _ in range(job.steps))
