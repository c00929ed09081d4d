"""From the trace of a launch to steps: everything that does not depend on data, done once."""
