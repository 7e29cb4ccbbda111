"""The benchmark runs, its rows have what committed ones have, and the plot is drawn."""

import json
import pathlib

import pytest

from jax_symm import __main__, bench

COMMITTED = sorted(
    (pathlib.Path(bench.__file__).parents[1] / "docs/benchmarks").glob("*.json")
)
OPTIONS = ["--shape", "64", "512", "--m", "64", "--rounds", "2"]


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("bench")
    out, plot = folder / "rows.json", folder / "rows.png"
    files = ["--out", str(out), "--plot", str(plot)]
    assert __main__.main(["bench", *OPTIONS, "--shared-ranks", "2", *files]) == 0
    return json.loads(out.read_text()), plot


def types(row):
    return {key: (str if isinstance(v, str) else float) for key, v in row.items()}


def test_rows_are_as_committed_ones(written):
    document, _ = written
    keys = set(types(document["rows"][0]).items())
    assert COMMITTED
    for path in COMMITTED:
        committed = json.loads(path.read_text())
        assert set(committed) == set(document)
        assert set(committed["machine"]) == set(document["machine"])
        for row in committed["rows"]:
            # Rows have gained columns, and lost none.
            assert set(types(row).items()) <= keys
    for row in document["rows"]:
        assert set(types(row).items()) == keys


def test_every_operation_is_timed(written):
    document, _ = written
    seen = [(row["op"], row["path"], row["R"], row["m"]) for row in document["rows"]]
    assert seen == [
        *((f"gemm_{op}", "host", 8, 64) for op in bench._OPS),
        ("reduction", "xla", 2, 64),
    ]
    for row in document["rows"]:
        assert row["arch"] == "cpu"
        assert row["us"] > 0
        assert row["ratio"] > 0
        assert row["us_quartiles"][0] <= row["us"] <= row["us_quartiles"][1]


def test_the_plot_is_an_image(written):
    _, plot = written
    assert plot.read_bytes().startswith(b"\x89PNG")
    assert plot.stat().st_size > 10_000


def test_rows_of_a_file_are_drawn_and_tabled_without_timing(written, tmp_path):
    document, _ = written
    rows, plot, table = (tmp_path / name for name in ("r.json", "p.png", "t.json"))
    rows.write_text(json.dumps(document))
    files = ["--rows", str(rows), "--plot", str(plot), "--crossover", str(table)]
    assert __main__.main(["bench", *files]) == 0
    assert plot.exists()
    # Nothing here was measured by push between GPUs.
    assert json.loads(table.read_text())["layers"] == []
