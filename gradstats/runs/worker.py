"""A worker of a run, or one rank of it: ``python -m gradstats.runs.worker FILE``, started by the process of the run.

The file holds the experiment and where it is run. A line on standard input, or Ctrl-C, asks to stop after the current
shard; its end, which the death of the starting process brings about, ends the worker at once.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import sys
import threading
from pathlib import Path

from gradstats.config.experiment import Experiment
from gradstats.runs.ranks import is_first, joined_ranks
from gradstats.system.user_code import code_beside, look_in
from gradstats.system.worker import portable


def _obey() -> None:
    """Stop when that is asked for, which the first rank decides for the others; end when the standard input does."""
    if is_first():
        while os.read(0, 1):
            os.kill(os.getpid(), signal.SIGINT)
    else:
        ended = select.poll()
        ended.register(0, 0)
        ended.poll()
    os._exit(1)


def main(file: Path) -> None:
    """Make shards until none is missing; the first error is left beside the file, for the process of the run."""
    from gradstats.runs.pipeline import make_shards, opened_run

    threading.Thread(target=_obey, daemon=True).start()
    try:
        experiment: Experiment
        experiment, path, folders = pickle.loads(file.read_bytes())
        look_in(folders)
        with code_beside(experiment.folder), joined_ranks(), opened_run(experiment, path) as (run, _):
            if is_first():
                run.record()  # shows that it has begun
            make_shards(run, progress=False)
    except KeyboardInterrupt:
        sys.exit(130)
    except (Exception, SystemExit) as error:  # sys.exit in a user's function
        try:
            with file.with_suffix(".error").open("xb") as out:
                out.write(pickle.dumps(portable(error)))
        except FileExistsError:  # of another rank, for which this one waited
            pass
        os._exit(1)  # the end of a process group would wait for its other ranks


if __name__ == "__main__":
    main(Path(sys.argv[1]))
