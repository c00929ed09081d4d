"""How far off the model is, the constants fitted to measurements, and measuring itself."""
