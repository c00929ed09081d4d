"""The programs are no modules: importing one, as for its doctests, would run it."""

collect_ignore_glob = ["[a-z]*.py"]
