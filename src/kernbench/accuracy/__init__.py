"""How accurate the model is: scores, constants fitted to measurements, and measuring itself."""
