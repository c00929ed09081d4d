"""The program of each simulated process of the judge."""

import sys

from kernbench.judging.simulation import call_work

call_work(sys.argv[1])
