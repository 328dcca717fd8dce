"""Layers that share weights or read of others, and Mamba-3's queries in bf16, on a GPU: do all ways to run agree?

    python benchmarks/sharing.py [cuda]

For each spec: the loss and the gradients' norm in bf16 against those in fp32, and the logits of steps from a captured
decoder against those of the whole sequence.
"""

from __future__ import annotations

import sys

import torch

from plait.model import build
from plait.model.decoding import Decoder
from plait.ops.paths import autocast_on

BLOCK = "zamba2[head_dim=32,state=32,heads=4,lora=8,lora_attn"
SPECS = {
    "zamba2": f"d=128 vocab=256 | mamba2[head_dim=32,state=32] {BLOCK},share=a] {BLOCK},share=b] {BLOCK},share=a]",
    "sambay": "d=128 vocab=256 | mamba swiglu attn[heads=4,kv_heads=2,pos=none] swiglu "
    "(gmu swiglu cross-attn[heads=4,pos=none] swiglu)x2",
    "albert": "d=128 vocab=256 | (attn[heads=4,share=a] swiglu[share=a])x4",
    "mamba3": "d=128 vocab=256 | (mamba3[state=32,head_dim=32] swiglu)x2",
    "mamba3, rank 4": "d=128 vocab=256 | (mamba3[state=32,head_dim=32,rank=4] swiglu)x2",
}


def compared(spec: str, device: torch.device) -> str:
    tokens = torch.randint(256, (2, 200), generator=torch.Generator().manual_seed(0)).to(device)
    found = []
    for exact in (True, False):
        model = build(spec, device=device)
        with torch.autocast(device.type, enabled=False) if exact else autocast_on(device):
            loss = model.loss(tokens, tokens.roll(-1, 1))
        loss.backward()
        norm = sum(float(p.grad.double().square().sum()) for p in model.parameters() if p.grad is not None) ** 0.5
        found.append((float(loss.detach()), norm))
    model = build(spec, device=device).eval()
    with torch.no_grad():
        whole = model(tokens)
        _, state = model.extend(tokens[:, :100], model.init_state(2))
        decoder = Decoder(model, state)
        gap = max(float((decoder.step(tokens[:, at]) - whole[:, at]).abs().max()) for at in range(100, 160))
    (loss, norm), (rounded, its_norm) = found
    return f"loss {loss:.5f}, bf16 {rounded:.5f}; gradient {norm:.4f}, bf16 {its_norm:.4f}; decoder off by {gap:.1e}"


def told(spec: str, device: torch.device) -> str:
    try:
        return compared(spec, device)
    except Exception as wrong:  # the others are still to be seen
        return f"{type(wrong).__name__}: {str(wrong)[:300]}"


if __name__ == "__main__":
    for name, spec in SPECS.items():
        print(f"{name}: {told(spec, torch.device(sys.argv[1] if len(sys.argv) > 1 else 'cuda'))}", flush=True)
