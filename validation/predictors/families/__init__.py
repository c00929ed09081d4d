"""What is run for the rows of each source of programs: script, arguments, ranks, device."""
