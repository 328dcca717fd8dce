"""Devices by name: whether torch can compute on one, and in what precision models are trained there."""

from __future__ import annotations

from plait.core.errors import UserError


def usable(device: str) -> str:
    """The device, if torch can compute on it."""
    import torch

    try:
        torch.zeros(1, device=device)
    except (RuntimeError, AssertionError):
        raise UserError(f"--device {device}: torch cannot compute on that here.") from None
    return device


def precision_on(device: str) -> str:
    """What models are trained in there, unless something else is asked for."""
    return "bf16" if device.startswith("cuda") else "fp32"
