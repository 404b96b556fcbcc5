"""Plotly's script, packed for pages that load nothing: its small bundle, where the wheel has it."""

import dataclasses
import gzip
from pathlib import Path

BUNDLE = Path(__file__).parent / 'assets' / 'plotly-cartesian.min.js.gz'
"""The bundle without maps and 3D that `tools/hatch_build.py` puts into the wheel."""


@dataclasses.dataclass(frozen=True)
class Script:
    """Plotly's script.

    Attributes:
        packed: its bytes, compressed by gzip.
        is_small: the script is our bundle, not the one in plotly's wheel.
    """

    packed: bytes
    is_small: bool

    @property
    def text(self) -> str:
        """The script itself."""
        return gzip.decompress(self.packed).decode()


def script() -> Script:
    """Reads the script: the small bundle, or the script of plotly's wheel without a bundle."""
    if BUNDLE.exists():
        return Script(BUNDLE.read_bytes(), True)
    from plotly.offline import get_plotlyjs

    return Script(gzip.compress(get_plotlyjs().encode(), mtime=0), False)
