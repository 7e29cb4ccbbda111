"""Command line: `python -m jax_symm bench`."""

from __future__ import annotations

import argparse
import sys

from jax_symm import bench


def main(arguments: list[str] | None = None) -> int:
    """Runs a subcommand; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m jax_symm")
    commands = parser.add_subparsers(dest="command", required=True)
    bench.add_arguments(commands.add_parser("bench", help=bench.SUMMARY))
    parsed = parser.parse_args(arguments)
    return bench.run(parsed)


if __name__ == "__main__":
    sys.exit(main())
