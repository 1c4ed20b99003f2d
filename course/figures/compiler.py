"""Whether torch.compile can make kernels here, found out with a kernel that nobody needs. For chapter 11."""

NEEDED = {
    "cpu": "a C++ compiler: g++ and Python's headers (Linux), Xcode's command line tools (macOS), "
    "Visual Studio's build tools (Windows, in their own command prompt)",
    "cuda": "Triton, which comes with PyTorch on Linux and needs a C compiler there (gcc or clang); on Windows "
    "`pip install triton-windows` brings both",
}


def why_no_kernels(device) -> str | None:
    """One sentence that says why torch.compile cannot make kernels for this torch.device; None where it can."""
    import torch

    if device.type == "mps":
        return "kernels for Apple's GPU are a prototype; NANOGPT_DEVICE=cpu runs this chapter"
    try:
        x = torch.zeros(8, device=device, requires_grad=True)
        torch.compile(lambda x: (x + 1).sum())(x).backward()
    except Exception as error:  # its class differs by platform, version, and what is missing
        lines = str(error).strip().splitlines() or [type(error).__name__]
        reason = next((line for line in lines if "error:" in line), lines[0])
        return f"no kernels for {device.type} here ({reason.strip()}); they need {NEEDED[device.type]}"
    return None
