"""Programs that are run with other processes; nothing here is imported."""
