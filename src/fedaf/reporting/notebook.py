"""Figures that notebooks show. This module imports matplotlib."""

import io

from matplotlib.figure import Figure


class NotebookFigure(Figure):
    """A figure that a notebook shows as a picture. It shows others only after pyplot was imported."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        self.savefig(buffer, format="png")
        return buffer.getvalue()
