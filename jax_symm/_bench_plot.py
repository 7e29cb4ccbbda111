"""Draws the rows of a benchmark: speed-up over the other side, and a roofline."""

from __future__ import annotations

from pathlib import Path
from typing import Any


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
    sending = [row for row in rows if row["gbps"] > 0 and row["tflops"] > 0]
    panels = 2 if sending else 1
    figure, grid = pyplot.subplots(1, panels, figsize=(7 * panels, 6), squeeze=False)
    _draw_ratios(grid[0, 0], rows)
    if sending:
        _draw_roofline(grid[0, 1], rows, sending)
    figure.suptitle(document["machine"]["devices"])
    figure.tight_layout()
    figure.savefig(path)
    pyplot.close(figure)


def _series(rows: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The rows of each line: same operation, path, ranks and layer."""
    series: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        label = f"{row['op']} {row['path']} R={row['R']} {row.get('name', '')}"
        series.setdefault(label, []).append(row)
    return {label: sorted(one, key=lambda r: r["m"]) for label, one in series.items()}


def _draw_ratios(axes: Any, rows: list[dict[str, Any]]) -> None:
    for label, one in _series(rows).items():
        axes.plot([r["m"] for r in one], [r["ratio"] for r in one], "o-", label=label)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log", base=2)
    axes.set_xlabel("m")
    others = sorted({row["ratio_to"] for row in rows})
    axes.set_ylabel(f"speed over {', '.join(others)}")
    if rows:
        axes.legend(fontsize=6)


def _draw_roofline(
    axes: Any, rows: list[dict[str, Any]], sending: list[dict[str, Any]]
) -> None:
    """TFLOP/s over flops per byte sent, under the best rates seen in these rows."""
    for label, one in _series(sending).items():
        intensity = [1e3 * r["tflops"] / r["gbps"] for r in one]
        axes.plot(intensity, [r["tflops"] for r in one], "o", label=label)
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
