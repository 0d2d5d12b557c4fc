"""A run that is killed while it writes, and run again, leaves the same files byte for byte."""

from __future__ import annotations

import os
import signal

import pytest
from killed_runs import MOMENTS, contents, kill_and_resume

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")


@pytest.mark.timeout(1200)
def test_a_killed_run_resumes_to_the_same_bytes(experiment, finished, tmp_path):
    ended = kill_and_resume(experiment, tmp_path, ["half:4", "written:26"])
    assert [codes for _, *codes in ended] == [[str(-signal.SIGKILL), "0"]] * 2
    whole = contents(finished.run.path)
    for name, *_ in ended:
        assert contents(tmp_path / "runs" / name) == whole, name


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_run_may_be_killed_at_every_write(drawing, drawn, tmp_path, moment):
    whole = contents(drawn.run.path)
    ended = kill_and_resume(drawing, tmp_path, [f"{moment}:{number}" for number in range(1, 40)])
    assert ended[0][1] == str(-signal.SIGKILL)
    for name, first, second in ended:
        assert first in ("0", str(-signal.SIGKILL)), name  # 0: the run has fewer writes
        assert second == "0", name
        assert contents(tmp_path / "runs" / name) == whole, name
