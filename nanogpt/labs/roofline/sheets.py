"""What GPUs can do at most, by their data sheets.

Exported from notebooks/09_measuring.ipynb.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Peak:
    """A GPU by its data sheet: dense TFLOP/s by format, GB/s, the source, and the driver's names for it."""

    float32: float
    tf32: float | None
    half: float  # bfloat16 with float32 sums; float16 where there is neither TF32 nor bfloat16
    bandwidth: float
    source: str
    reported: tuple[str, ...] = ()  # without NVIDIA, Tesla and GeForce; none: the table's own name


PEAKS = {  # by NVIDIA's data sheets and white papers
    "B200": Peak(80, 1100, 2250, 8000, "Blackwell technical brief, 2024 (HGX B200)"),
    "H200": Peak(67, 494.7, 989.4, 4800, "H200 data sheet, 2024 (SXM)"),
    "H100": Peak(67, 494.7, 989.4, 3350, "H100 data sheet, 2023 (SXM)", ("H100 80GB HBM3",)),
    "H100-PCIe": Peak(51, 378, 756, 2000, "H100 data sheet, 2023", ("H100 PCIe",)),
    "A100-80GB": Peak(19.5, 156, 312, 2039, "A100 data sheet, 2021", ("A100-SXM4-80GB",)),
    "A100-80GB-PCIe": Peak(19.5, 156, 312, 1935, "A100 data sheet, 2021", ("A100 80GB PCIe",)),
    "A100-40GB": Peak(19.5, 156, 312, 1555, "A100 white paper", ("A100-SXM4-40GB", "A100-PCIE-40GB")),
    "H800": Peak(67, 494.7, 989.4, 3350, "an H100 (SXM) with less NVLink"),
    "A800": Peak(19.5, 156, 312, 2039, "an A100 (80 GB) with less NVLink", ("A800-SXM4-80GB",)),
    "A800-PCIe": Peak(19.5, 156, 312, 1935, "an A100 (80 GB) with less NVLink", ("A800 80GB PCIe",)),
    "L40S": Peak(91.6, 183, 362, 864, "L40S data sheet, 2023"),
    "L4": Peak(30.3, 60, 121, 300, "L4 data sheet, 2023"),
    "A10": Peak(31.2, 62.5, 125, 600, "A10 data sheet, 2021"),
    "V100": Peak(15.7, None, 125, 900, "V100 data sheet, 2020 (SXM2)", ("V100-SXM2-16GB", "V100-SXM2-32GB")),
    "V100-PCIe": Peak(14, None, 112, 900, "V100 data sheet, 2020", ("V100-PCIE-16GB", "V100-PCIE-32GB")),
    "V100S": Peak(16.4, None, 130, 1134, "V100 data sheet, 2020 (V100S PCIe)", ("V100S-PCIE-32GB",)),
    "T4": Peak(8.1, None, 65, 320, "T4 data sheet, 2019"),
    "A6000": Peak(38.7, 77.4, 154.8, 768, "GA102 white paper, 2020", ("RTX A6000",)),
    "RTX 5090": Peak(104.8, 104.8, 209.5, 1792, "RTX Blackwell white paper, 2025"),
    "RTX 4090": Peak(82.6, 82.6, 165.2, 1008, "Ada white paper, 2022"),
    "RTX 4070 SUPER": Peak(35.5, 35.5, 71, 504, "NVIDIA's specifications, 2024: 7,168 cores at 2.475 GHz"),
    "RTX 3090": Peak(35.6, 35.6, 71, 936, "GA102 white paper, 2020"),
}


def peak_of(gpu: str) -> Peak | None:
    """The data sheet of a GPU by its name in PEAKS or torch.cuda.get_device_name()'s; None for any other name."""
    name = " ".join(word for word in gpu.split() if word not in ("NVIDIA", "Tesla", "GeForce"))
    for key, peak in PEAKS.items():
        if name == key or name in peak.reported:
            return peak
    return None
