"""What published rows measured, and the time that the engine gives."""
