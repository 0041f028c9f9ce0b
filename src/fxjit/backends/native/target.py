"""The target of kernels: C++ on the CPU or Triton on a GPU; available libraries, and the form of literals."""

from __future__ import annotations

import functools
import importlib.util
import platform
from pathlib import Path

import torch

from fxjit import config

# What the kernels use (asynchronous copies, bfloat16) is there from Ampere on.
OLDEST_GPU = (8, 0)


def by_triton(device: torch.device) -> bool:
    """Whether kernels for the device are rendered in Triton."""
    return device.type == "cuda" or (device.type == "cpu" and config.triton.interpret)


def has_kernels(device: torch.device) -> bool:
    """Whether there are kernels for the device; ATen is called for tensors on others."""
    return device.type == "cpu" or (device.type == "cuda" and gpu_problem(device.index or 0) is None)


@functools.cache
def gpu_problem(index: int) -> str | None:
    """Why there are no kernels for this GPU. Where there is no GPU at all, kernels can still be made, for other machines."""
    if torch.version.hip is not None:
        return "kernels are for NVIDIA GPUs"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if torch.cuda.is_available() and torch.cuda.get_device_capability(index) < OLDEST_GPU:
        return f"the GPU is older than compute capability {OLDEST_GPU[0]}.{OLDEST_GPU[1]}"
    return None


def has_libmvec(minor: int) -> bool:
    """Whether this machine's C library is glibc 2.`minor` or later, on a processor that libmvec is for."""
    library, version = platform.libc_ver()
    if library != "glibc" or platform.machine() not in ("x86_64", "AMD64"):
        return False
    parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
    return parts >= [2, minor]


@functools.cache
def has_intel_processor() -> bool:
    """Whether the processor is of MKL's maker, for which its fast ways are."""
    try:
        return "GenuineIntel" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return "Intel" in platform.processor()


def scalar_tensor(number: float, device: torch.device | str = "cpu") -> torch.Tensor:
    """How kernels on the device get a number that is known only at a call."""
    return torch.scalar_tensor(number, dtype=torch.float64, device=device)
