"""Steps of models split over devices: layers run on a machine, collectives on its links."""
