// What the timeline shows, unpacked: lanes of slices in order of time, kernels' engines, links.

async function unpackTimeline(packed) {
  const [slices, path, engines, links] = await Promise.all(
    [packed.slices, packed.path, packed.engines.slices, packed.links.busy].map(unpack),
  );
  let first = 0;
  const lanes = packed.lanes.map((lane) => {
    const shown = unpackLane(lane, slices, first);
    first += lane.count;
    return shown;
  });
  return {
    endPs: packed.end_ps,
    things: packed.things,
    lanes,
    path: pathOf(path),
    engines: enginesOf(packed.engines.names, engines, packed.things),
    links: { names: packed.links.names, bins: packed.links.bins, full: packed.links.full, busy: links.share },
    joined: packed.joined,
  };
}

function unpackLane({ rank, kind, label, count }, slices, first) {
  const part = (name) => slices[name].subarray(first, first + count);
  const [gap, duration] = [part("gap"), part("duration")];
  const lane = {
    rank, kind, label, count, late: part("late"), thing: part("thing"), launch: part("launch"), after: part("after"), merged: part("count"),
    start: new Float64Array(count),
    end: new Float64Array(count),
    reach: new Float64Array(count), // the latest end so far: slices may overlap
    busy: new Float64Array(count + 1), // the sum of durations before
  };
  let end = 0;
  for (let i = 0; i < count; i++) {
    lane.start[i] = end + gap[i];
    end = lane.end[i] = lane.start[i] + duration[i];
    lane.reach[i] = i ? Math.max(lane.reach[i - 1], end) : end;
    lane.busy[i + 1] = lane.busy[i] + duration[i];
  }
  return lane;
}

// The critical path as a lane: its segments follow each other without a gap.
function pathOf(columns) {
  const { rows: count, start, duration } = columns;
  const end = start.map((ps, i) => ps + duration[i]);
  const busy = new Float64Array(count + 1);
  const onPath = new Set();
  for (let i = 0; i < count; i++) {
    busy[i + 1] = busy[i] + duration[i];
    if (columns.launch[i]) onPath.add(`${columns.launch[i]} ${columns.rank[i]}`);
  }
  return { ...columns, count, end, reach: end, busy, has: (launch, rank) => onPath.has(`${launch} ${rank}`) };
}

// Per kernel and engine: its slices, and the share of the kernel's time in which it is busy.
function enginesOf(names, columns, things) {
  const byThing = new Map();
  for (let i = 0; i < columns.rows; ) {
    const [thing, engine] = [columns.thing[i], columns.engine[i]];
    let j = i;
    let busy = 0;
    while (j < columns.rows && columns.thing[j] === thing && columns.engine[j] === engine) busy += columns.duration[j++];
    if (!byThing.has(thing)) byThing.set(thing, names.map(() => null));
    const share = Math.min(1, busy / Math.max(1, things[thing].duration_ps));
    byThing.get(thing)[engine] = { first: i, last: j, share };
    i = j;
  }
  return { names, columns, of: (thing, engine) => byThing.get(thing)?.[engine] ?? null };
}

// The first place of sorted values that is greater than a limit.
function firstAbove(values, limit, low = 0, high = values.length) {
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] > limit) high = middle;
    else low = middle + 1;
  }
  return low;
}

// The slice of a lane at a moment, the last one that has begun; -1 without one.
function sliceAt(lane, ps, tolerancePs) {
  const after = firstAbove(lane.start, ps + tolerancePs);
  for (let i = after - 1; i >= 0 && lane.reach[i] >= ps - tolerancePs; i--) {
    if (lane.end[i] >= ps - tolerancePs) return i;
  }
  return -1;
}
