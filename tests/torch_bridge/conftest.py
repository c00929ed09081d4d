"""The programs here are run by tests; they are none."""

collect_ignore = ["programs"]
