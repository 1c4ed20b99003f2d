"""Which split a document belongs to.

Exported from notebooks/03_data.ipynb.
"""


def split_of(sha256: bytes, val: float, test: float) -> str:
    """Train, val or test, decided by nothing but a document's SHA-256 and the two fractions.

    u is the hash's first eight bytes as a big-endian integer, divided by 2**64: val if u < val, test if u < val + test.
    """
    u = int.from_bytes(sha256[:8], "big") / 2**64
    if u < val:
        return "val"
    if u < val + test:
        return "test"
    return "train"
