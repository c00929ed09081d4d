"""From the trace of a launch to steps: all work that does not depend on data, done once."""
