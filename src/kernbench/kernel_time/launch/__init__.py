"""All programs of a launch: the waves that they run in, and the rows of the op log."""
