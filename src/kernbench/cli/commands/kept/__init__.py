"""The commands that read runs which --save has kept."""
