"""MFU, model FLOPs utilisation (Chowdhery et al. 2022, arXiv:2204.02311, App. B): of the FLOPs that a device is made
for, those that the model's arithmetic needs. What is computed twice or masked away counts for nothing, so it is at most
one.

Peaks are the makers' for dense products: bf16 with fp32 sums, and fp32 without tensor cores (which torch does not use
for fp32 unless told to). A device that is not in the table has none, and no MFU.
"""

from __future__ import annotations

import torch

from plait.training.job import Job

#: By what a device's name contains, the first that fits: FLOPs per second in bf16 and fp32.
PEAKS: tuple[tuple[str, float, float], ...] = (
    ("B300", 2250e12, 75e12),
    ("B200", 2250e12, 75e12),
    ("H200", 989.4e12, 66.9e12),
    ("GH200", 989.4e12, 66.9e12),
    ("H100 PCIe", 756.5e12, 51.2e12),
    ("H100 NVL", 835.5e12, 60e12),
    ("H100", 989.4e12, 66.9e12),
    ("H800", 989.4e12, 66.9e12),
    ("H20", 148e12, 44e12),
    ("A100", 312e12, 19.5e12),
    ("A800", 312e12, 19.5e12),
    ("A10G", 70e12, 35e12),
    ("A10", 125e12, 31.2e12),
    ("A40", 149.7e12, 37.4e12),
    ("L40S", 362e12, 91.6e12),
    ("L40", 181e12, 90.5e12),
    ("L4", 121e12, 30.3e12),
    ("RTX 5090", 209.5e12, 104.8e12),
    ("RTX 4090", 165.2e12, 82.6e12),
    ("RTX 3090", 71e12, 35.6e12),
    ("RTX 6000 Ada", 364.2e12, 91.1e12),
    ("RTX A6000", 154.8e12, 38.7e12),
)


def peak_flops(device_name: str, precision: str) -> float | None:
    """FLOPs per second, or None for a device not in the table."""
    for name, bf16, fp32 in PEAKS:
        if name in device_name:
            return bf16 if precision == "bf16" else fp32
    return None


def peak_of(device: torch.device, precision: str) -> float | None:
    return peak_flops(torch.cuda.get_device_name(device), precision) if device.type == "cuda" else None


def mfu(job: Job, tokens_per_second: float, peak: float | None) -> float | None:
    """None where the device's peak is not known."""
    return None if peak is None else tokens_per_second * job.model_flops_per_token / peak
