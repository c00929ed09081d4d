"""How the calls of a group's ranks disagree, and which rank's call is wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kernbench.clock import listed
from kernbench.errors import CollectiveMismatchError
from kernbench.runtime_api.collectives.work import Part

_MOST_PAIRS = 8


def differing(title: str, works: Sequence[Part]) -> CollectiveMismatchError | None:
    """Return the error for calls that differ between ranks, or None."""
    first = works[0].signature
    # Equal ones are mostly one object.
    if all(work.signature is first or work.signature == first for work in works):
        return None
    usual, num_usual = Counter(work.signature for work in works).most_common(1)[0]
    odd = ""
    if 2 * num_usual > len(works):
        ranks = [work.rank for work in works if work.signature != usual]
        odd = f", {'that' if len(ranks) == 1 else 'those'} of {listed(ranks)} from the others'"
    head = f"the ranks' calls differ at {title}{odd}; every rank must make the same call:"
    return CollectiveMismatchError("\n".join([head, *calls(works)]))


def not_fitting(title: str, works: Sequence[Part], reason: str) -> CollectiveMismatchError:
    """Return the error for tensors that do not match, with what was found."""
    head = f"{title}: the tensors of the ranks do not fit each other ({reason}):"
    return CollectiveMismatchError("\n".join([head, *calls(works)]))


def exchanged(title: str, works: Sequence[Part]) -> tuple[int, ...]:
    """Return the elements from every rank to every rank of an all_to_all of uneven parts.

    Empty where all parts are equal, and for what is no all_to_all.

    Raises:
        CollectiveMismatchError: A rank sends other than what its peer takes; names who is wrong
            where all that does not fit is one rank's.
    """
    first = works[0].sent
    if all(work.sent == first == work.taken for work in works) and len(set(first)) <= 1:
        return ()
    wrong = [
        (giver, taker, giver.sent[dst], taker.taken[src])
        for src, giver in enumerate(works)
        for dst, taker in enumerate(works)
        if giver.sent[dst] != taker.taken[src]
    ]
    folded = next((work for work in works if work.num_ranks > 1), None)
    if wrong and folded is not None:
        raise CollectiveMismatchError(
            f"the program cannot be folded: rank {folded.rank} runs for {folded.num_ranks} ranks "
            f"of {title}, but sends parts of {min(folded.sent)} to {max(folded.sent)} elements, "
            "so that these ranks have unequal work; leave --fold out, or give experts equal loads"
        )
    if wrong:
        lines = [
            f"  rank {giver.rank} sends {number} elements to rank {taker.rank}, which takes "
            f"{taken} from it"
            for giver, taker, number, taken in wrong[:_MOST_PAIRS]
        ]
        if len(wrong) > _MOST_PAIRS:
            lines.append(f"  and {len(wrong) - _MOST_PAIRS} more")
        common = set.intersection(*({giver.rank, taker.rank} for giver, taker, *_ in wrong))
        odd = f"; what rank {common.pop()} asks for fits none" if len(common) == 1 else ""
        head = f"{title}: not all ranks take what is sent to them{odd}:"
        raise CollectiveMismatchError("\n".join([head, *lines, *calls(works)]))
    return tuple(count for work in works for count in work.sent)


def calls(works: Sequence[Part]) -> list[str]:
    """Return a line about each rank's call, with where it was made."""
    asked = [(f"  rank {work.rank}  {work.asked()}", str(work.site)) for work in works]
    width = max(len(call) for call, _ in asked)
    return [f"{call:<{width}}    {site}" for call, site in asked]
