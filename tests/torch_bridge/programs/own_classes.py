"""A module that each process imports for itself."""


class Settings:
    def __init__(self, word):
        self.word = word
