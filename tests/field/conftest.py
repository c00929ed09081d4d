"""The programs here are run by ``make test-field``; the tests here are of their runner."""

collect_ignore = ["libraries", "programs", "reliability", "trainers"]
