"""One rank of a launch: joins the job, runs the function, writes its results."""

import faulthandler
import importlib.util
import json
import os
import pathlib
import sys


def _forbid_multicast():
    """The GPUs may be others' too: what would make a multicast object aborts."""
    from jax_symm import _backends

    _backends.forbid_multicast()


def main():
    spec = json.loads(sys.argv[1])
    faulthandler.dump_traceback_later(spec["timeout_s"], exit=True)
    import jax

    if spec["processes"] > 1:
        jax.distributed.initialize(
            f"localhost:{spec['port']}",
            spec["processes"],
            spec["rank"],
            **spec["distributed"],
        )
    if "cuda" in os.environ["JAX_PLATFORMS"]:
        _forbid_multicast()
    found = importlib.util.spec_from_file_location("program", spec["program"])
    program = importlib.util.module_from_spec(found)
    found.loader.exec_module(program)
    results = {}

    def note(name, value):
        results[name] = value
        pathlib.Path(spec["results"]).write_text(json.dumps(results))

    getattr(program, spec["function"])(note, spec["argument"])


main()
