"""The speed-ups as rungs of a ladder: what each changes in a step, and its predicted time.

Exported from notebooks/14_ladder.ipynb.
"""

import importlib.util
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nanogpt.bench import PRODUCTS, step_work
from nanogpt.device import seed_everything
from nanogpt.model import GPT, GPTConfig, num_params
from nanogpt.roofline import PAGE, Roofline

RUNGS = {
    "float32": "attention step by step, every sum and product in float32",
    "kept memory": "the C library keeps what a step frees (Linux, on a CPU)",
    "TF32": "float32 products on tensor cores, 10 bits of mantissa (chapter 10)",
    "bf16": "autocast: products in bfloat16 (chapter 10)",
    "compile": "torch.compile fuses what lies between the products (chapter 11)",
    "flash": "attention in one kernel, no T×T matrix (chapter 12)",
    "nice numbers": "vocabulary padded to a multiple of 128",
    "fused AdamW": "the optimizer in one pass over memory",
    "bf16 weights": "weights and stream kept in bfloat16, float32 masters in the optimizer",
}


def rungs_up_to(name: str, skipped=()) -> set[str]:
    """The rungs that are on at rung `name`: all up to it, less the skipped ones."""
    names = list(RUNGS)
    return set(names[: names.index(name) + 1]) - set(skipped)


LARGE = 32 * 2**20  # bytes; malloc's DEFAULT_MMAP_THRESHOLD_MAX on 64-bit systems


def fresh_bytes(config: GPTConfig, B: int, T: int) -> int:
    """Bytes that a float32 step allocates in blocks above LARGE: tensors like the logits, like wte, and T×T."""
    V, C, L = config.vocab_size, config.n_embd, config.n_layer
    tensors = [(4, B * T * V), (4, V * C), (0 if config.flash else 8 * L, B * config.n_head * T * T)]
    return sum(count * 4 * numbers for count, numbers in tensors if 4 * numbers > LARGE)


def pad_vocabulary(model: GPT, multiple: int = 128) -> None:
    """Append zero rows to wte, which is also lm_head, up to a multiple; in place. 50257 becomes 50304.

    No id and no target names an added row, so its logit is pushed down wherever it has a probability.
    Sampling must not draw from `logits[..., vocab_size:]`, and an export leaves the added rows out.
    """
    old = model.transformer.wte.weight.data  # (V, C)
    rows = -(-len(old) // multiple) * multiple
    new = nn.Parameter(torch.cat([old, old.new_zeros(rows - len(old), old.shape[1])]))
    model.transformer.wte.weight = model.lm_head.weight = new
    model.transformer.wte.num_embeddings = model.lm_head.out_features = rows


def adamw_update(weight, grad, master, m, v, rate, scale, lr, beta1, beta2, eps, weight_decay) -> None:
    """AdamW on the float32 master, rounded into the weight; in place (Loshchilov & Hutter 2019, algorithm 2).

    rate = lr / (1 - beta1**t) and scale = 1 / (1 - beta2**t) are tensors, so that what is compiled holds for any t.
    """
    grad = grad.float()
    m.lerp_(grad, 1 - beta1)
    v.lerp_(grad * grad, 1 - beta2)
    master.mul_(1 - lr * weight_decay)
    master.sub_(rate * m / ((v * scale).sqrt() + eps))
    weight.copy_(master)


class MasterAdamW:
    """AdamW for a model whose weights it turns to bfloat16; masters and moments stay in float32.

    All weights lie end to end in one tensor, of which the model's are views, so that an update is one call.
    """

    def __init__(self, model: nn.Module, compiled: bool, **options):
        self.params = list(model.parameters())
        self.master = torch.cat([p.detach().float().flatten() for p in self.params])  # before rounding
        self.m, self.v = torch.zeros_like(self.master), torch.zeros_like(self.master)
        self.weight = self.master.bfloat16()
        for p, part in zip(self.params, self.weight.split([p.numel() for p in self.params])):
            p.data = part.view_as(p)
        self.update = torch.compile(adamw_update) if compiled else adamw_update
        self.steps, self.options = 0, options

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        grad = torch.cat([p.grad.flatten() for p in self.params])
        lr, beta1, beta2 = (self.options[name] for name in ("lr", "beta1", "beta2"))
        rate = torch.full((), lr / (1 - beta1**self.steps), device=grad.device)
        scale = torch.full((), 1 / (1 - beta2**self.steps), device=grad.device)
        self.update(self.weight, grad, self.master, self.m, self.v, rate, scale, **self.options)

    def zero_grad(self) -> None:
        for p in self.params:
            p.grad = None


def zipf_batches(vocab_size: int, B: int, T: int, seed: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless (x, y), each (B, T): token r occurs with a probability of about 1 / r. A seed gives one sequence."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ids = (vocab_size ** torch.rand(B, T + 1, generator=generator)).long() - 1
        yield ids[:, :-1], ids[:, 1:]


def to_device(ids: Tensor, device: torch.device) -> Tensor:
    """ids on the device; a CUDA device copies them while it still works on the step before."""
    return ids.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else ids.to(device)


def token_loss(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean loss in nats, summed in float32 whatever the logits are in."""
    return F.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def make_optimizer(model: GPT, on: set[str]):
    """AdamW with GPT-3's betas and decay, as the rungs in `on` ask for it."""
    if "bf16 weights" in on:
        options = {"lr": 3e-4, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1}
        return MasterAdamW(model, "compile" in on, **options)
    fused = True if "fused AdamW" in on else None  # None: PyTorch's own choice for the device
    return torch.optim.AdamW(model.parameters(), 3e-4, (0.9, 0.95), weight_decay=0.1, fused=fused)


def compile_parts(model: GPT, device: torch.device) -> tuple[Callable, Callable]:
    """Compiled (forward, loss). On a GPU the whole forward; elsewhere block by block, since all blocks share one
    graph: a twelfth of the compile time, and only what spans two blocks stays unfused."""
    if device.type == "cuda":
        return torch.compile(model), torch.compile(token_loss)
    for block in model.transformer.h:
        block.compile()
    return model, torch.compile(token_loss)


def make_step(config: GPTConfig, on: set[str], B: int, T: int, device: torch.device) -> tuple[GPT, Callable]:
    """A model, and a function that does one training step with the rungs in `on`.

    The function returns the loss, still on the device, and leaves the gradients until it is called again.
    """
    torch.set_float32_matmul_precision("high" if "TF32" in on else "highest")
    model = GPT(replace(config, flash="flash" in on), seed_everything(0))
    if "nice numbers" in on:
        pad_vocabulary(model)
    optimizer = make_optimizer(model.to(device), on)
    forward, loss_of = compile_parts(model, device) if "compile" in on else (model, token_loss)
    cast = torch.autocast(device.type, torch.bfloat16, enabled="bf16" in on and "bf16 weights" not in on)
    batches = zipf_batches(config.vocab_size, B, T)

    def step() -> Tensor:
        x, y = (to_device(ids, device) for ids in next(batches))
        with cast:
            loss = loss_of(forward(x)[0], y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    return model, step


SCORE_BYTES = (76, 44, 72, 22)  # float32, compiled, autocast, both; forward and backward
LOGIT_BYTES = (24, 16, 36, 8)


def work_seconds(config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline) -> dict[str, float]:
    """Seconds by part of forward and backward on the roofline: chapter 09's step_work, as the rungs change it."""
    half, compiled = "bf16" in on, "compile" in on
    width, column = 2 if half else 4, 2 * half + compiled
    flops, nbytes = {}, {}
    for work in step_work(config, B, T, width):
        flops[work.part] = flops.get(work.part, 0) + work.flops
        nbytes[work.part] = nbytes.get(work.part, 0) + work.nbytes
    scores = 0 if config.flash else config.n_layer * B * config.n_head * T * T
    nbytes["attention"] += (SCORE_BYTES[column] - 19 * width) * scores
    nbytes["cross-entropy"] = LOGIT_BYTES[column] * B * T * config.vocab_size
    if compiled:
        nbytes["residual"] *= 1 / 2 if roof.device == "cuda" else 3 / 4
    for part in ("embedding", "layer norm", "residual"):
        nbytes[part] /= 2 if "bf16 weights" in on else 1  # elsewhere 4 bytes a number
    dtype = "bfloat16" if half else "tf32" if "TF32" in on else "float32"
    rates = {part: dtype if part in PRODUCTS else "float32" for part in flops if part != "optimizer"}
    return {part: roof.seconds(flops[part], nbytes[part], rate) for part, rate in rates.items()}


def predict(
    config: GPTConfig, on: set[str], B: int, T: int, roof: Roofline, fault: float = 0.0
) -> dict[str, float]:
    """Seconds of one step by part, before anything is run. fault: what `fault_seconds` measured, 0 where it is not paid."""
    P, masters = num_params(config), "bf16 weights" in on
    rows = -(-config.vocab_size // 128) * 128 if "nice numbers" in on else config.vocab_size
    config = replace(config, vocab_size=rows, flash="flash" in on)
    seconds = work_seconds(config, on, B, T, roof)
    if "kept memory" not in on:
        seconds["page faults"] = fault * fresh_bytes(config, B, T) / PAGE
    if "bf16" in on and not masters:  # read 4, write 2 forward; the gradient back: read 2, write 4
        seconds["weight casts"] = 12 * P / roof.bandwidth
    per_weight = 32 if masters else 28 if "fused AdamW" in on else 80  # bytes
    seconds["optimizer"] = per_weight * P / roof.bandwidth
    return seconds


def has_cpp_compiler() -> bool:
    """Whether torch.compile can find a C++ compiler: the one that CXX names, or the platform's usual one."""
    usual = "cl" if os.name == "nt" else "clang++" if sys.platform == "darwin" else "g++"
    return bool(shutil.which((os.environ.get("CXX") or usual).split()[0]))


def why_not_kept(device: torch.device) -> str | None:
    """Why the allocator of this device cannot be told to keep freed memory; None where it can."""
    if device.type != "cpu":
        return f"PyTorch's allocator for {device.type} keeps freed memory anyway"
    glibc = platform.libc_ver()[0] == "glibc"
    return None if glibc else "only glibc, most Linux systems' C library, can be told so"


def obstacles(device: torch.device, roof: Roofline, skip=()) -> dict[str, str]:
    """Rungs that this device cannot do, or that shall be skipped, each with the reason."""
    kind, reasons = device.type, dict.fromkeys(skip, "left out by --skip")
    capability = torch.cuda.get_device_capability(device) if kind == "cuda" else (0, 0)
    if reason := why_not_kept(device):
        reasons["kept memory"] = reason
    if capability < (8, 0) or torch.version.hip:
        reasons["TF32"] = "TF32 exists on NVIDIA GPUs of compute capability 8.0 and later"
    if kind == "cuda" and capability < (8, 0):
        reasons["bf16"] = "this GPU computes no bfloat16; float16 needs loss scaling (chapter 10)"
    elif roof.flops["bfloat16"] < 0.8 * roof.flops["float32"]:
        reasons["bf16"] = "bfloat16 products are slower than float32 ones here: no hardware for them"
    if kind == "mps":
        reasons["compile"] = "torch.compile is a prototype on mps"
    elif kind == "cuda" and (capability < (7, 0) or not importlib.util.find_spec("triton")):
        reasons["compile"] = (
            "it needs Triton, which PyTorch does not bring on Windows, and compute capability 7.0"
        )
    elif kind == "cpu" and not has_cpp_compiler():
        reasons["compile"] = "it needs a C++ compiler, and none is on the path; install one or set CXX"
    if missing := {"bf16", "compile"} & set(reasons):
        reasons.setdefault("bf16 weights", f"it stands on {' and '.join(sorted(missing))}")
    return reasons
