"""The learner of the stream as two groups of one rank under mpirun, beside the real server, daemon and broker: it trains and submits; when
a rank is killed the group ends with a sentence, and the same command goes on to what an unbroken group would have trained."""
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

from conftest import BIN, poll
from test_faults import last_step, weights
from test_loop import LEARN, Clients, start, versions

RANKS = {**LEARN, "train__ttt_steps": 3, "checkpoint__interval_s": 2, "ranks__data": 2}


def under_mpirun(stack):
    """From now on the stack's learner is a group of two."""
    if not shutil.which("mpirun"):
        pytest.skip("mpirun is not there (apt-get install openmpi-bin libopenmpi-dev)")
    if not (BIN.parent / "lib" / "redraft" / "redraft-mpi.so").exists():
        pytest.skip("redraft-mpi.so was not built: libopenmpi-dev was not there")
    starter = stack.dir / "two-ranks"
    starter.write_text(f'#!/bin/sh\nexec mpirun --allow-run-as-root --oversubscribe -np 2 {BIN}/redraft-learn "$@"\n')
    starter.chmod(0o755)
    stack.bins["redraft-learn"] = starter


def rank(stack, number):
    """The process id of that rank of the group whose state is the stack's."""
    for p in Path("/proc").glob("[0-9]*"):
        try:
            if f"OMPI_COMM_WORLD_RANK={number}" in (p / "environ").read_text("utf-8", "replace").split("\0") and \
                    str(stack.dir / "learn-state") in (p / "cmdline").read_text("utf-8", "replace").split("\0"):
                return int(p.name)
        except OSError:  # it ended meanwhile
            pass
    return 0


def test_two_ranks_learn_from_the_stream(stack, kafka):
    under_mpirun(stack)
    start(stack, kafka, 38, **RANKS)
    clients = Clients(stack)
    stack.wait("a version was submitted", 150, lambda: versions(stack), "learn")
    stack.wait("training goes on", 150, lambda: stack.status("learn").get("step", 0) >= 10, "learn")
    learn, victim = stack.children["learn"], rank(stack, 1)
    assert victim and rank(stack, 0) != victim
    os.kill(victim, signal.SIGKILL)
    stack.wait("the group ended", 90, lambda: not learn.running())
    assert learn.poll() != 0 and poll(60, lambda: not rank(stack, 0) and not rank(stack, 1))
    log = Path(learn.log).read_text("utf-8", "replace")
    assert re.search(r"rank 1\b[^.]*signal 9", log), log[-2000:]  # mpirun's own; rank 0 knows only that it was told to end
    step = last_step(stack)
    stack.again("learn")
    stack.wait_status("learn", 90)
    stack.wait("training goes on", 150, lambda: stack.status("learn").get("step", 0) >= step + 8, "learn")
    clients.stop()
    clients.check(20)
    stack.call("learn", "PauseTraining")
    os.kill(rank(stack, 0), signal.SIGTERM)  # it ends the other
    stack.wait("the group went home", 90, lambda: not learn.running())
    assert learn.poll() == 0, learn.tail()
    follow = stack.start_learn(kafka.address, name="follow", wait=False, follow_journal=stack.dir / "learn-state" / "journal", **RANKS)
    stack.wait("the journal was followed", 150, lambda: not follow.running())
    assert follow.poll() == 0, follow.tail()
    assert weights(stack, "learn") == weights(stack, "follow")
