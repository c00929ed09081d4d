"""What operations compute: numpy functions, rounded as the device rounds."""
