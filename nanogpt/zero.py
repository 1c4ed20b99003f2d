"""ZeRO by hand, its three stages, and what chapter 21 makes several processes do.

Exported from notebooks/21_sharding.ipynb.
"""

DRILLS = {}
