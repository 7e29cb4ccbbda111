"""Draws the rows of a benchmark: speed-up over each other side, and a roofline."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

_COLUMNS = 4
_STYLES = {"peer_pull": "x--", "multicast": "s:"}

Row = dict[str, Any]


def draw(document: dict[str, Any], path: Path) -> None:
    """Writes the plots of a document as an image; no roofline where nothing is sent.

    Args:
      document: What `python -m jax_symm bench` wrote.
      path: The image; its suffix says the format.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rows = [row for row in document["rows"] if row["op"] != "reduction"]
    panels = _groups(rows, lambda r: f"{r['op']}, R = {r['R']}, over {r['ratio_to']}")
    sending = [row for row in rows if row["gbps"] > 0 and row["tflops"] > 0]
    count = len(panels) + bool(sending)
    lines, columns = math.ceil(count / _COLUMNS), min(count, _COLUMNS)
    size = (5 * columns, 4 * lines)
    figure, grid = pyplot.subplots(lines, columns, figsize=size, squeeze=False)
    axes = list(grid.flat)
    for title, panel in panels.items():
        _draw_ratios(axes.pop(0), title, panel)
    if sending:
        _draw_roofline(axes.pop(0), rows, sending)
    for unused in axes:
        unused.axis("off")
    figure.suptitle(document["machine"]["devices"])
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _groups(rows: list[Row], title: Callable[[Row], str]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda r: (r["R"], r["ratio_to"])):
        groups.setdefault(title(row), []).append(row)
    return groups


def _draw_ratios(axes: Any, title: str, rows: list[Row]) -> None:
    """One line a layer and path, over m."""
    layers = _groups(rows, lambda r: f"{r.get('name', '')}, n={r['n']} k={r['k']}")
    for number, (layer, of_layer) in enumerate(layers.items()):
        for path, line in _groups(of_layer, lambda r: str(r["path"])).items():
            line.sort(key=lambda r: int(r["m"]))
            ms, ratios = [r["m"] for r in line], [r["ratio"] for r in line]
            style, label = _STYLES.get(path, "o-"), f"{layer}, {path}"
            axes.plot(ms, ratios, style, color=f"C{number}", markersize=4, label=label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("m")
    axes.set_title(title, fontsize=8)
    axes.legend(fontsize=6)


def _draw_roofline(axes: Any, rows: list[Row], sending: list[Row]) -> None:
    """TFLOP/s over flops per byte sent, under the best rates seen in these rows."""
    for label, points in _groups(sending, lambda r: f"{r['op']}, R = {r['R']}").items():
        intensity = [1e3 * r["tflops"] / r["gbps"] for r in points]
        axes.plot(intensity, [r["tflops"] for r in points], ".", label=label)
    axes.set_xlabel("flops per byte sent")
    axes.set_ylabel("TFLOP/s")
    peak = max(
        row["tflops"] * row["us"] / row.get("floor_us", row["us"]) for row in rows
    )
    link = max(row["gbps"] for row in sending)
    knee = 1e3 * peak / link
    xs = [knee / 16, knee, knee * 16]
    axes.plot(xs, [peak / 16, peak, peak], "k--", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend(fontsize=6)
