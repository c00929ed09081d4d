"""Many candidates judged: a folder of them, on processes or a cluster, and a page of verdicts."""
