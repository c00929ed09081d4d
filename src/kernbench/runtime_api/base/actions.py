"""What the program of a run did to its devices, kept so that it can be done again (ADR-0155).

A run without its program: for each rank the launches, copies, collectives and waits in their order,
and for each of them what it was rather than how long it took. Times that a machine decides are not
in it.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from kernbench.clock import Handle, Rank, Simulation, Stream, frame_of_program
from kernbench.op_log import UNKNOWN_SITE, OpLog, Site
from kernbench.saved import Action, Actions, Actor

_COPIES = ("copy_from_host", "copy_to_host")
_LAUNCH, _HOST_LAUNCH, _ARRIVE = Action.LAUNCH.value, Action.HOST_LAUNCH.value, Action.ARRIVE.value
"""Members of an enumeration take a look-up of their own."""


class _Acting:
    """A rank, or main, and what it has done so far."""

    __slots__ = ("number", "put", "rank", "sip_id", "values")

    def __init__(self, number: int, rank: int) -> None:
        self.number, self.rank = number, rank
        self.values: list[int] = []
        self.put: Callable[[Iterable[int]], None] = self.values.extend
        self.sip_id = rank
        """Its current device, as far as its actions say."""


class _ActingAt(_Acting):
    """One of whom it is also known at which lines of the program it did what."""

    __slots__ = ("sites",)

    def __init__(self, number: int, rank: int) -> None:
        super().__init__(number, rank)
        self.sites: list[Site] = []
        self.put = self._put_at

    def _put_at(self, values: Iterable[int], /) -> None:
        frame = frame_of_program(sys._getframe(1))
        self.sites.append(
            UNKNOWN_SITE if frame is None else (frame.f_code.co_filename, frame.f_lineno)
        )
        self.values.extend(values)


class Keeper:
    """Collects the actions of one run, from its start; those of ranks with lines if asked to."""

    def __init__(self, simulation: Simulation, *, with_sites: bool = False) -> None:
        self._simulation = simulation
        self._new_acting = _ActingAt if with_sites else _Acting
        self.actors: dict[Rank | None, _Acting] = {None: _Acting(0, 0)}
        self._works: dict[Hashable, int] = {}
        self._described: list[dict[str, Any]] = []
        self._texts: dict[Any, int] = {}
        self._text_of: list[dict[str, Any]] = []
        self._tuples: dict[tuple[int, ...], int] = {}
        self._streams: dict[Stream, int] = {}
        self._meetings: dict[Any, int] = {}
        self._meeting_of: list[dict[str, Any]] = []
        self._channels: dict[Hashable, int] = {}
        self._signature_numbers: dict[Hashable, int] = {}
        self._signatures: dict[int, tuple[int, Hashable]] = {}
        """The number of what ranks ask of a collective, and what they ask, by its identity: hashing
        it takes longer than all else that is noted of a part."""
        self._decided_by_data: list[tuple[dict[str, Any], Any]] = []
        self._spawns: dict[Any, int] = {}
        self._spends: dict[tuple[str, str, int, int], int] = {}
        self._owed: dict[int, int] = {}
        self._owed_of: list[Any] = []
        self._labels: dict[str, int] = {}
        self._as_they_were: list[tuple[dict[str, Any], Any]] = []
        self.origins: dict[Any, dict[str, Any]] = {}
        """What operations of PyTorch are, by their timings."""
        self.about: dict[str, Any] = {}
        """What holds for all of the run."""
        self.make_host: Callable[[Any, int], Any] | None = None
        """Makes the host of a rank, for a run and its number, where a host runs ahead."""
        self.refused: dict[str, None] = {}
        """Why it cannot be done again."""
        self.memory_events: list[int] = []
        """Three values for an event of memory: its number, the actor at work, how many numbers the
        actions behind it have."""
        self.asked = Counter[str]()
        """How often the program has looked at what depends on time or on the machine."""

    @property
    def actor(self) -> _Acting:
        """Whose code runs now."""
        running = self._simulation.running
        acting = self.actors.get(running)
        if acting is None:
            assert running is not None
            acting = self.add_actor(running)
        return acting

    def add_actor(self, rank: Rank) -> _Acting:
        """Return the actor of a rank that has just been started."""
        acting = self.actors[rank] = self._new_acting(len(self.actors), rank.rank_id)
        return acting

    def sites(self) -> dict[int, list[Site]]:
        """Return by actor at which line each action was, where that was asked for."""
        acting = self.actors.values()
        return {item.number: item.sites for item in acting if isinstance(item, _ActingAt)}

    def memory_event(self, number: int) -> None:
        """Note where among the actions memory is allocated or freed."""
        actor = self.actors.get(self._simulation.running) or self.actor
        self.memory_events.extend((number, actor.number, len(actor.values)))

    def put(self, action: int, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Note an action of whoever's code runs."""
        actor = self.actors.get(self._simulation.running) or self.actor
        actor.put((action, a, b, c))

    def makes(self, handle: Handle, action: int, a: int = 0, b: int = 0, c: int = 0) -> None:
        """Note an action that makes a handle, for which others may wait."""
        actor = self.actors.get(self._simulation.running) or self.actor
        handle.made_by = (actor.number, len(actor.values) >> 2)
        actor.put((action, a, b, c))

    def waits(
        self, action: int, handle: Handle, last: int = 0, *, is_pending: bool = False
    ) -> None:
        """Note an action on a handle, which ``is_pending`` or was when the action began."""
        maker, place = handle.made_by
        if maker == -1:
            if handle.done and not is_pending:
                return
            self.refused[f"it waits for {handle.describe()}"] = None
        self.put(action, maker, place, last)

    def waits_behind(self, waiting: Handle, handle: Handle, stream: int) -> None:
        """Note that a stream waits for a collective, which its rank may then regard as ended."""
        maker, place = handle.made_by
        self.makes(waiting, Action.STREAM_IS_BEHIND, maker, place, stream)

    def asks(self, handle: Handle, sip_id: int) -> None:
        """Note that the program asks whether a handle has ended."""
        self.is_on(sip_id)
        self.asked["queries whether something has ended"] += 1
        self.waits(Action.POLL, handle)

    def reads_times(self) -> None:
        """Note that the program reads the time between two events."""
        self.asked["readings of times between events"] += 1

    def is_on(self, sip_id: int) -> _Acting:
        """Note the current device of whoever's code runs, where it is another one than before.

        Returns whose code that is.
        """
        actor = self.actors.get(self._simulation.running) or self.actor
        if actor.sip_id != sip_id:
            actor.sip_id = sip_id
            actor.put((Action.BIND, sip_id, 0, 0))
        return actor

    def host_launch(self, label: str, sip_id: int) -> None:
        """Note that a host spends the time of a launch."""
        actor = self.is_on(sip_id)
        actor.put((_HOST_LAUNCH, self.work(label, lambda: {"kind": "host", "name": label}), 0, 0))

    def launches(
        self,
        launch: Any,
        key: tuple[Any, ...],
        describe: Callable[..., dict[str, Any]],
        sip_id: int,
    ) -> None:
        """Note the launch of a kernel on its queue, at its addresses.

        ``describe`` is called with this and the parts of the key.
        """
        # Of all actions the most frequent one: without calls for what is known.
        actor = self.actors.get(self._simulation.running) or self.actor
        if actor.sip_id != sip_id:
            self.is_on(sip_id)
        work = self._works.get(key)
        if work is None:
            work = self.work(key, lambda: describe(self, *key))
        tuples, streams = self._tuples, self._streams
        launch.made_by = (actor.number, len(actor.values) >> 2)
        actor.put(
            (
                _LAUNCH,
                work,
                tuples.setdefault(launch.addresses, len(tuples)),
                streams.setdefault(launch.queue, len(streams)),
            )
        )

    def decides_by_data(self, launch: Any, queue: Stream, sip_id: int) -> None:
        """Note the launch of a kernel that decides by data, with the time that it will take."""
        self.is_on(sip_id)
        described = {"kind": "decided by data", "name": launch.label}
        self._decided_by_data.append((described, launch))
        self._described.append(described)
        self.makes(launch, Action.KEPT_LAUNCH, len(self._described) - 1, 0, self.stream(queue))

    def transfers(self, command: Any, queue: Stream, sip_id: int) -> None:
        """Note a fill or a copy."""
        self.is_on(sip_id)
        template = command.template
        key = (template, command.sip_id)
        work = self.work(key, lambda: {"kind": "transfer", **_moved(template, command.sip_id)})
        self.makes(
            command, Action.TRANSFER, work, self.number_of(command.addresses), self.stream(queue)
        )

    def arrives(
        self,
        meeting: Any,
        position: int,
        part: Any,
        channel: Hashable,
        queue: Stream | None,
        spans: tuple[int, ...] = (),
        *,
        has_host: bool = False,
    ) -> None:
        """Note that a rank brings a part to a collective, behind a stream and a channel."""
        number = self._meetings.get(meeting)
        if number is None:
            number = self._meetings[meeting] = len(self._meeting_of)
            self._meeting_of.append(meeting.described())
        stream = -1 if queue is None else self.stream(queue)
        channel = self._channels.setdefault(channel, len(self._channels))
        asked = part.signature
        signature, _ = self._signatures.get(id(asked)) or self._signature(asked)
        site = (part.site.file, part.site.line)
        key = (signature, part.sent, part.taken, part.called, part.sip_id, site, position,
               channel, stream)  # fmt: skip
        work = self.work(
            key, lambda: {"has_host": has_host, **_part(part, site, position, channel, stream)}
        )
        self.makes(part, _ARRIVE, number, work, self.number_of(spans))

    def _signature(self, asked: Hashable) -> tuple[int, Hashable]:
        """Return the number of what ranks ask of a collective, the same one for equal ones."""
        number = self._signature_numbers.get(asked)
        if number is not None:
            return number, asked
        number = self._signature_numbers[asked] = len(self._signature_numbers)
        signature = self._signatures[id(asked)] = number, asked
        return signature

    def spawns(self, spawn: Any, ranks: Sequence[Rank], number: int) -> None:
        """Note that ranks were started together."""
        starter = self.actor
        first = len(self.actors)
        for rank in ranks:
            self.add_actor(rank)
        self._spawns[spawn] = len(self._spawns)
        starter.put((Action.SPAWN, first, len(ranks), number))

    def joins(self, spawn: Any) -> None:
        """Note that ranks are waited for."""
        self.put(Action.JOIN, self._spawns[spawn])

    def spend(self, label: str, kind: str, num_calls: int, owed: int) -> int:
        """Return the number of what a host spends for a launch."""
        key = (label, kind, num_calls, owed)
        return self._spends.setdefault(key, len(self._spends))

    def owed(self, value: int, counts: Callable[[int], Any]) -> int:
        """Return the number of what a host owes, which ``counts`` splits; 0 is nothing."""
        number = self._owed.get(value)
        if number is None:
            self._owed_of.append(counts(value))
            number = self._owed[value] = len(self._owed_of)
        return number

    def label(self, text: str) -> int:
        """Return the number of a text."""
        return self._labels.setdefault(text, len(self._labels))

    def copy(self, template: Any, sip_id: int) -> int:
        """Return the number of a copy between host and device."""
        return self.work(
            (template, sip_id),
            lambda: (
                {"kind": "transfer", **_moved(template, sip_id)}
                if template.name in _COPIES
                else self._as_it_was([template], template.name)
            ),
        )

    def timing(self, timing: Any) -> int:
        """Return the number of an operation by its timing."""
        work = self._works.get(timing)
        if work is None:
            origin = self.origins.get(timing)
            work = self.work(
                timing, lambda: origin or self._as_it_was(timing, timing.template(False).name)
            )
        return work

    def comes_from(self, timing: Any, described: dict[str, Any], name: str = "") -> None:
        """Note what operation a timing is of; of one with a ``name``, also how long it takes."""
        self.origins[timing] = described
        if name:
            described["name"] = name
            self._as_they_were.append((described, timing))

    def _as_it_was(self, templates: Any, name: str) -> dict[str, Any]:
        """Return the description of what will take as long as it did."""
        described = {"kind": "as it was", "name": name}
        self._as_they_were.append((described, templates))
        return described

    def work(self, key: Hashable, describe: Callable[[], dict[str, Any]]) -> int:
        """Return the number of a piece of work, the same one for equal keys."""
        number = self._works.get(key)
        if number is None:
            number = self._works[key] = len(self._described)
            self._described.append(describe())
        return number

    def text(self, key: Hashable, describe: Callable[[], dict[str, Any]]) -> int:
        """Return the number of something large that several works share, as a kernel's text."""
        number = self._texts.get(key)
        if number is None:
            number = self._texts[key] = len(self._text_of)
            self._text_of.append(describe())
        return number

    def number_of(self, values: tuple[int, ...]) -> int:
        """Return the number of a tuple of numbers."""
        return self._tuples.setdefault(values, len(self._tuples))

    def stream(self, queue: Stream) -> int:
        """Return the number of a stream."""
        return self._streams.setdefault(queue, len(self._streams))

    def kept(self, queues_of: Callable[[int], Sequence[Stream]], log: OpLog) -> Actions:
        """Return everything, to be saved; ``queues_of`` gives the streams of a SIP in order."""
        from kernbench.saved import Actions

        self._find_templates(log)
        for described, launch in self._decided_by_data:
            if not launch.ended_by:
                self.refused[f"kernel {launch.label} failed"] = None
                continue
            described |= {
                "launch": launch.ended_by,
                "addresses": launch.met[1],
                "operands": [dataclasses.astuple(item) for item in launch.met[0]],
            }
        streams = [
            (stream.sip_id, _place(stream, queues_of(stream.sip_id))) for stream in self._streams
        ]
        return Actions(
            {
                **self.about,
                "works": self._described,
                "texts": self._text_of,
                "streams": streams,
                "meetings": self._meeting_of,
                "tuples": list(self._tuples),
                "spends": list(self._spends),
                "owed": self._owed_of,
                "labels": list(self._labels),
                "refused": list(self.refused),
                "asked": dict(self.asked),
            },
            [Actor(actor.number, actor.rank, actor.values) for actor in self.actors.values()],
            None if log.allocations is None else self._placed_events(),
        )

    def _placed_events(self) -> npt.NDArray[np.int64]:
        """Return the events of memory, with how many actions their actors had behind them."""
        events = np.array(self.memory_events, np.int64).reshape(-1, 3)
        events[:, 2] >>= 2  # an action has four numbers
        return events

    def _find_templates(self, log: OpLog) -> None:
        """Note by what launches the log knows the templates of what takes as long as it did."""
        if not self._as_they_were:
            return
        launches = {instance.template: instance.launch_id for instance in log.instances}
        for described, templates in self._as_they_were:
            if not isinstance(templates, list):
                templates = [templates.idle, templates.queued]
            described["launches"] = [launches.get(template, 0) for template in templates]


def _place(stream: Stream, streams: Sequence[Stream]) -> int:
    # Those of ranks that were started again are gone; such a run is refused.
    return streams.index(stream) if stream in streams else 0


def _moved(template: Any, sip_id: int) -> dict[str, Any]:
    halves = 2 if template.name == "copy" else 1
    return {"name": template.name, "sip": sip_id, "bytes": template.hbm_bytes // halves}


def _part(
    part: Any, site: tuple[str, int], position: int, channel: int, stream: int
) -> dict[str, Any]:
    signature = part.signature
    dtype = signature.dtype
    return {
        "kind": "part",
        "op": signature.op,
        "shapes": signature.shapes,
        "dtype": None if dtype is None else (dtype.name, dtype.itemsize),
        "reduce_op": signature.reduce_op,
        "root": signature.root,
        "algorithm": signature.algorithm,
        "num_elements": signature.num_elements,
        "protocol": signature.protocol,
        "name": signature.called,
        "sent": part.sent,
        "taken": part.taken,
        "called": part.called,
        "sip": part.sip_id,
        "site": site,
        "position": position,
        "channel": channel,
        "stream": stream,
    }
