"""A tokenizer without its table, which it would download: tokens are made up, their time is not."""


class Encoding:
    """Gives every text as many tokens as the lecture's input has."""

    def encode(self, text: str) -> list[int]:
        return [(index * 7919) % 50257 for index in range(338025)]

    def decode(self, tokens: list[int]) -> str:
        return ""


def get_encoding(name: str) -> Encoding:
    return Encoding()
