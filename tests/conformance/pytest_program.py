"""pytest as a program of simulated processes: tests start their ranks themselves."""

import sys

import pytest

if __name__ == "__main__":
    sys.exit(pytest.main(sys.argv[1:]))
