"""What this package adds to the command kernbench: validate and calibrate for published rows."""
