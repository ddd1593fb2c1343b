"""Where tensors live and how exactly an encoder computes: one parameter each, `EARLIB_DEVICE` and `EARLIB_PRECISION`.

Both are settings of a machine rather than of an experiment: another device rounds differently and changes nothing else.
A profile may name them (`device: cuda`); they are then those of every notebook that it runs.
"""

import os
import re

DTYPES = ("float32", "float64")
PRECISIONS = ("full", "mixed")  # all in the precision of the encoder's own weights; matrix products in bfloat16


def default():
    """The device that is used where none is named: `EARLIB_DEVICE`, else the processor."""
    return check(os.environ.get("EARLIB_DEVICE") or "cpu")


def precision():
    """The precision of encoding: `EARLIB_PRECISION`, else full."""
    return _chosen("EARLIB_PRECISION", PRECISIONS)


def dtype():
    """The precision in which adapters learn and score: `EARLIB_DTYPE`, else float32."""
    return _chosen("EARLIB_DTYPE", DTYPES)


def _chosen(variable, known):
    chosen = os.environ.get(variable) or known[0]
    if chosen not in known:
        raise ValueError(f"{variable}: expected one of {', '.join(known)}, got {chosen!r}")
    return chosen


def check(name):
    """The name of a device as it was given.

    Raises
    ------
    ValueError
        If it is neither the processor nor a CUDA device.
    """
    if not re.fullmatch(r"cpu|cuda(:\d+)?", name):
        raise ValueError(f"device: expected cpu, cuda or cuda:N, got {name!r} (EARLIB_DEVICE)")
    return name


def ready(name):
    """The device, if this machine has it.

    Raises
    ------
    ValueError
        If it has not; the message names the next step.
    """
    import torch

    device = torch.device(check(name))
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise ValueError(
            f"device {name}: this machine offers {torch.cuda.device_count()} CUDA devices to torch {torch.__version__}"
            "; choose EARLIB_DEVICE=cpu, or install torch's build for CUDA"
        )
    return device
