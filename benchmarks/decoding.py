"""Generation on a GPU: the same greedy tokens by replayed graphs and kernels as step by step in plain operations; then
milliseconds of a token, beside Hugging Face's eager `generate`.

    python benchmarks/decoding.py check [MIXER …]
    python benchmarks/decoding.py speed MODEL … [--size 360m] [--batch 1] [--positions 1024 65536]

`check`: small models in fp32, 2 rows. `speed`: bf16, vocabulary 50257; `huggingface` is transformers' Llama of the
Transformer's sizes. `--device cpu` tries both without a GPU.
"""

from __future__ import annotations

import argparse

import torch
from gpu_turn import TURN
from linear_training import spec_of

from plait.device.model_bench import decode_speed, hugging_face_speed
from plait.model import build
from plait.model.decoding import Decoder
from plait.ops.paths import plain_ops

MIXERS = (
    "attn[heads=4]", "gla[heads=4]", "hgrn2[head_dim=32]", "retnet[heads=4]", "rwkv6[head_dim=32]",
    "rwkv7[head_dim=32]", "mamba", "mamba2[head_dim=32,state=32]", "mamba3[head_dim=32,state=32]",
    "deltanet[head_dim=32]", "gated-deltanet[head_dim=32]", "kda[head_dim=32]", "hyena", "fox[heads=4]",
)  # fmt: skip
TOKENS = 48


@torch.no_grad()
def check(mixer: str, device: torch.device) -> str:
    torch.backends.cuda.matmul.allow_tf32 = False
    model = build(f"d=128 vocab=512 | ({mixer} swiglu)x2", device=device).eval()
    for parameter in model.parameters():  # livelier than at the start of a training
        parameter.mul_(1.5) if parameter.dim() > 1 else None
    prompt_BT = torch.randint(512, (2, 70), generator=torch.Generator().manual_seed(0)).to(device)
    with plain_ops():
        logits_BTV = model(prompt_BT)
        newest_B, state = logits_BTV[:, -1].argmax(-1), model.extend(prompt_BT, model.init_state(2))[1]
        plain, its_logits, token_B = [newest_B], [], newest_B
        for _ in range(TOKENS):
            logits_BV, state = model.step(token_B, state)
            its_logits.append(logits_BV)
            plain.append(token_B := logits_BV.argmax(-1))
    _, state = model.extend(prompt_BT, model.init_state(2))
    decoder = Decoder(model, state, capacity=70 + TOKENS + 1)
    same, gap, token_B = 0, 0.0, newest_B
    for wanted_B, logits_BV in zip(plain[1:], its_logits, strict=True):
        found_BV = decoder.step(token_B)
        gap = max(gap, float((found_BV - logits_BV).abs().max()))
        token_B = found_BV.argmax(-1)
        same += int((token_B == wanted_B).all())
        token_B = wanted_B
    return f"{same} of {TOKENS} tokens the same, logits {gap:.1e} apart (of {float(its_logits[0].abs().max()):.1f})"


def checked(mixer: str, device: torch.device) -> str:
    try:
        with TURN.shared():
            return check(mixer, device)
    except Exception as wrong:  # the others are still to be seen
        return f"FAILED {type(wrong).__name__}: {wrong}"[:300]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("check", "speed"))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--size", default="360m")
    parser.add_argument("--batch", nargs="*", type=int, default=[1])
    parser.add_argument("--positions", nargs="*", type=int, default=[1024, 65536])
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--device", default="cuda")
    asked = parser.parse_args()
    device = torch.device(asked.device)
    sizes = {"vocab": 50257, "device": device, "dtype": torch.bfloat16, "tokens": asked.tokens}
    if asked.what == "check":
        for name in asked.names or MIXERS:
            print(name, checked(name, device), flush=True)
        return
    for name in asked.names:
        measure = hugging_face_speed if name == "huggingface" else decode_speed
        spec = spec_of("transformer" if name == "huggingface" else name, asked.size)
        for batch in asked.batch:
            for position in asked.positions[:1] if name == "huggingface" else asked.positions:
                try:
                    with TURN.alone():
                        found = measure(spec, batch=batch, position=position, **sizes)
                    speed = f"{found.milliseconds:.3f} ms, {found.tokens_per_second:.0f} tokens/s"
                    held = "" if found.state_bytes is None else f", state {found.state_bytes / 2**20:.0f} MiB"
                    print(f"{name} {batch} rows, {position} tokens before: {speed}{held}", flush=True)
                except Exception as wrong:
                    print(name, batch, position, f"FAILED {type(wrong).__name__}: {wrong}"[:300], flush=True)
                torch.cuda.empty_cache() if device.type == "cuda" else None


if __name__ == "__main__":
    main()
