// The timeline: rows of ranks, streams, hosts, engines and links on one canvas that scrolls.

const GUTTER = 168;
const AXIS = 24;
const PATH = 20;
const HEAD = AXIS + PATH + 4;
const MOST_OPEN_RANKS = 4;
const MOST_OPEN_LINKS = 8;
const MOST_HEIGHT = 560;
const LEAST_VIEW_PS = 1000;
const MOST_FLOWS = 12;

class Timeline {
  // chosen(name): a kernel was clicked on
  constructor(box, model, color, chosen) {
    Object.assign(this, { box, model, color, chosen });
    this.canvas = box.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.spacer = box.querySelector("div");
    this.view = { from: 0, to: model.endPs || 1 };
    this.picked = null;
    this.only = null; // the name of what alone has its colour
    this.showsPath = true;
    this.open = new Set();
    this.known = [...new Set(model.lanes.map((lane) => lane.rank))].sort((a, b) => a - b);
    this.ranks = this.known;
    if (this.ranks.length <= MOST_OPEN_RANKS) this.ranks.forEach((rank) => this.open.add(`rank ${rank}`));
    if (model.links.names.length <= MOST_OPEN_LINKS) this.open.add("links");
    this.point = () => {};
    this.layOut();
    this.listen();
  }

  // Which rows there are, and where.
  layOut() {
    const { lanes, links } = this.model;
    const rows = [];
    const small = this.ranks.length > 24;
    for (const rank of this.ranks) {
      const mine = lanes.filter((lane) => lane.rank === rank);
      const host = mine.filter((lane) => lane.kind === "host");
      const streams = mine.filter((lane) => lane.kind === "stream");
      const key = `rank ${rank}`;
      if (!this.open.has(key)) {
        rows.push({ key, rank, label: key, kind: "rank", lanes: streams, host, height: small ? 13 : 18, gap: small ? 2 : 4 });
        continue;
      }
      rows.push({ key, rank, label: key, kind: "head", lanes: [], height: 16, gap: 1 });
      for (const lane of host) rows.push({ rank, label: "host", kind: "lane", lanes: [lane], height: 13, gap: 2 });
      for (const lane of streams) rows.push({ rank, label: lane.label, kind: "lane", lanes: [lane], height: 18, gap: 2 });
      this.model.engines.names.forEach((label, engine) => {
        rows.push({ rank, label, kind: "engine", engine, lanes: streams, height: 11, gap: 2 });
      });
      rows.at(-1).gap = 8;
    }
    if (links.names.length) {
      rows.push({ key: "links", label: plural(links.names.length, "link"), kind: "head", lanes: [], height: 18, gap: 1 });
      if (this.open.has("links")) {
        links.names.forEach((label, link) => rows.push({ label, kind: "link", link, lanes: [], height: 10, gap: 1 }));
      }
    }
    let y = 0;
    for (const row of rows) {
      row.y = y;
      y += row.height + row.gap;
    }
    this.rows = rows;
    this.rowsOf = new Map();
    for (const row of rows) {
      if (row.rank === undefined) continue;
      const own = this.rowsOf.get(row.rank) ?? { whole: null, host: null, streams: [] };
      if (row.kind === "rank") own.whole = row;
      else if (row.kind === "lane" && row.lanes[0].kind === "host") own.host = row;
      else if (row.kind === "lane") own.streams.push(row);
      this.rowsOf.set(row.rank, own);
    }
    this.height = Math.min(MOST_HEIGHT, HEAD + y + 4);
    this.box.style.height = `${this.height + 2}px`;
    this.spacer.style.height = `${HEAD + y + 4 - this.height}px`;
    this.resize();
  }

  // Show the ranks of a text such as 0-3,8; all for an empty one. Says whether there are such ranks.
  showRanks(text) {
    const parts = text.split(",").map((part) => /^\s*(\d+)\s*(?:-\s*(\d+)\s*)?$/.exec(part));
    const wanted = this.known.filter((rank) => parts.some((part) => part && rank >= Number(part[1]) && rank <= Number(part[2] ?? part[1])));
    if (text.trim() && !wanted.length) return false;
    this.ranks = text.trim() ? wanted : this.known;
    this.layOut();
    return true;
  }

  resize() {
    const ratio = devicePixelRatio || 1;
    this.width = this.box.clientWidth;
    this.canvas.width = Math.round(this.width * ratio);
    this.canvas.height = Math.round(this.height * ratio);
    this.canvas.style.width = `${this.width}px`;
    this.canvas.style.height = `${this.height}px`;
    this.draw();
  }

  draw() {
    if (this.pending) return;
    this.pending = requestAnimationFrame(() => {
      this.pending = 0;
      this.drawNow();
    });
  }

  drawNow() {
    const ratio = devicePixelRatio || 1;
    const { context, width, height } = this;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.font = "11px system-ui, 'DejaVu Sans', sans-serif";
    context.textBaseline = "middle";
    context.fillStyle = themed("--paper");
    context.fillRect(0, 0, width, height);
    this.ink = themed("--ink");
    this.quiet = themed("--quiet");
    this.dim = themed("--hover");
    this.lines = themed("--line");
    this.hatching = hatching(context, themed("--paper"));
    const pen = new Pen(context, this.view, GUTTER, width - GUTTER - 8);
    const { at, step } = ticks(this.view, pen.width);
    context.fillStyle = this.lines;
    for (const ps of at) context.fillRect(Math.round(pen.x(ps)), AXIS, 1, height);
    const shown = this.rows.filter((row) => this.top(row) + row.height > HEAD && this.top(row) < height);
    context.save();
    context.beginPath();
    context.rect(0, HEAD, width, height);
    context.clip();
    for (const row of shown) this.drawRow(pen, row, this.top(row));
    if (this.showsPath) this.drawPathOnRows(pen);
    if (this.picked) this.drawFlows(pen);
    this.drawLabels(shown);
    context.restore();
    this.drawHead(pen, at, step);
    this.box.dataset.drawn = String(shown.length);
  }

  top(row) {
    return HEAD + row.y - this.box.scrollTop;
  }

  colorOf(thing) {
    const { kind, name } = this.model.things[thing];
    if (this.only !== null && this.only !== name) return this.dim;
    return kind === "kernel" ? this.color(name) : kindColor(kind);
  }

  drawRow(pen, row, y) {
    if (row.kind === "engine") return this.drawEngine(pen, row, y);
    if (row.kind === "link") return this.drawLink(pen, row.link, y, row.height);
    const hosts = row.host ?? [];
    const below = hosts.length ? Math.round(row.height * 0.27) : 0;
    for (const lane of row.lanes) this.drawLane(pen, lane, y, row.height - below);
    for (const lane of hosts) this.drawLane(pen, lane, y + row.height - below, below);
  }

  drawLane(pen, lane, y, height) {
    const { things } = this.model;
    pen.eachVisible(lane, (i, j, x, width, share) => {
      const which = j - i > 1 ? pen.longest(lane, i, j) : i;
      const thing = lane.thing[which];
      const merged = lane.merged[which];
      const name = things[thing].name || things[thing].kind;
      pen.slice(this.colorOf(thing), x, y, width, height, share, merged > 1 ? `${name} and ${merged - 1} more` : name);
      if (lane.late[which] && j - i === 1) {
        const late = Math.min(pen.x(lane.start[which] + lane.late[which]), x + width) - x;
        if (late > 1) pen.hatch(this.hatching, x, y, late, height);
      }
    });
  }

  // The commands of kernels that keep one kind of engine busy.
  drawEngine(pen, row, y) {
    const { engines, things } = this.model;
    const { columns } = engines;
    for (const lane of row.lanes) {
      pen.eachVisible(lane, (i, j, x, width, share) => {
        const which = j - i > 1 ? pen.longest(lane, i, j) : i;
        const thing = lane.thing[which];
        const busy = engines.of(thing, row.engine);
        if (!busy) return;
        const color = this.colorOf(thing);
        if (width < 12) return pen.fill(color, x, y, width, row.height, share * busy.share);
        const stretch = (lane.end[which] - lane.start[which]) / Math.max(1, things[thing].duration_ps);
        for (let k = busy.first; k < busy.last; k++) {
          const begin = Math.max(x, pen.x(lane.start[which] + columns.start[k] * stretch));
          const end = Math.min(x + width, pen.x(lane.start[which] + (columns.start[k] + columns.duration[k]) * stretch));
          if (end > begin) pen.fill(color, begin, y, Math.max(end - begin, 0.6), row.height);
        }
      });
    }
  }

  drawLink(pen, link, y, height) {
    const { bins, full, busy } = this.model.links;
    const perBin = this.model.endPs / bins;
    const first = Math.max(0, Math.floor(this.view.from / perBin));
    const last = Math.min(bins, Math.ceil(this.view.to / perBin));
    for (let bin = first; bin < last; bin++) {
      const share = busy[link * bins + bin] / full;
      if (!share) continue;
      const x = Math.max(pen.x(bin * perBin), GUTTER);
      const end = Math.min(pen.x((bin + 1) * perBin), GUTTER + pen.width);
      pen.fill(kindColor("collective"), x, y, end - x, height, share);
    }
  }

  // The row on which something of a rank is drawn: its host, a stream, or all of it.
  rowOf(rank, launch) {
    const own = this.rowsOf.get(rank);
    if (!own) return null;
    if (own.whole || !launch) return own.whole ?? own.host;
    if (own.streams.length < 2) return own.streams[0] ?? null;
    return own.streams.find((row) => {
      const [lane] = row.lanes;
      lane.launches ??= new Set(lane.launch);
      return lane.launches.has(launch);
    }) ?? own.streams[0];
  }

  drawPathOnRows(pen) {
    const { path } = this.model;
    const { context } = this;
    let before = null;
    context.fillStyle = this.ink;
    pen.eachVisible(path, (i, j, x, width) => {
      const which = j - i > 1 ? pen.longest(path, i, j) : i;
      const row = this.rowOf(path.rank[which], path.launch[which]);
      if (!row) return;
      const y = this.top(row) + row.height - 1;
      context.fillRect(x, y, Math.max(width, 0.5), 2);
      if (before !== null && before !== y) {
        context.globalAlpha = 0.55;
        context.fillRect(x - 0.5, Math.min(before, y), 1, Math.abs(before - y) + 2);
        context.globalAlpha = 1;
      }
      before = y;
    });
  }

  // Where a launch is on a rank: when, and at what height of the canvas; null where it is not drawn.
  spotOf(rank, kind, launch) {
    if (!launch) return null;
    for (const lane of this.model.lanes) {
      const index = lane.rank === rank && lane.kind === kind ? lane.launch.indexOf(launch) : -1;
      if (index < 0) continue;
      const own = this.rowsOf.get(rank);
      const row = kind === "host" ? own?.host ?? own?.whole : this.rowOf(rank, launch);
      if (!row) return null;
      const isBelow = kind === "host" && row === own.whole;
      return { launch, start: lane.start[index], end: lane.end[index], y: this.top(row) + row.height * (isBelow ? 0.87 : 0.5) };
    }
    return null;
  }

  // From the host's launch to what is picked, from what that waited for, and to what waits for it.
  flowsOf({ lane, index }) {
    const launch = lane.launch[index];
    const own = this.spotOf(lane.rank, "stream", launch);
    if (!own) return [];
    const flows = [[this.spotOf(lane.rank, "host", launch), own]];
    for (const other of this.model.lanes) {
      if (other.rank !== lane.rank || other.kind !== "stream") continue;
      for (let i = 0; i < other.count && flows.length < MOST_FLOWS; i++) {
        if (other.launch[i] === launch) flows.push([this.spotOf(lane.rank, "stream", other.after[i]), own]);
        else if (other.after[i] === launch) flows.push([own, this.spotOf(lane.rank, "stream", other.launch[i])]);
      }
    }
    return flows.filter(([from, to]) => from && to);
  }

  drawFlows(pen) {
    const { context } = this;
    const { lane, index } = this.picked;
    this.flows = [];
    if (!lane.launch[index]) return;
    this.flows = this.flowsOf(this.picked);
    context.strokeStyle = context.fillStyle = this.ink;
    for (const [from, to] of this.flows) {
      const [x, end] = [pen.x(from.end), pen.x(to.start)];
      const bend = Math.max(12, Math.abs(end - x) / 2);
      context.lineWidth = 1.25;
      context.beginPath();
      context.moveTo(x, from.y);
      context.bezierCurveTo(x + bend, from.y, end - bend, to.y, end - 4, to.y);
      context.stroke();
      context.beginPath();
      context.moveTo(end, to.y);
      context.lineTo(end - 6, to.y - 3.5);
      context.lineTo(end - 6, to.y + 3.5);
      context.fill();
    }
  }

  drawLabels(shown) {
    const { context } = this;
    context.fillStyle = themed("--paper");
    context.fillRect(0, HEAD, GUTTER - 6, this.height);
    for (const row of shown) {
      const isHead = row.kind === "head" || row.kind === "rank";
      const y = this.top(row) + row.height / 2 + 0.5;
      context.fillStyle = isHead ? this.ink : this.quiet;
      if (isHead) context.fillText(this.open.has(row.key) ? "▾" : "▸", 8, y);
      const label = row.label.length > 24 ? `${row.label.slice(0, 23)}…` : row.label;
      context.fillText(label, isHead ? 21 : 32, y);
    }
  }

  drawHead(pen, at, step) {
    const { context } = this;
    context.fillStyle = themed("--paper");
    context.fillRect(0, 0, this.width, HEAD);
    context.fillStyle = this.quiet;
    for (const ps of at) {
      const x = Math.round(pen.x(ps));
      context.fillRect(x, AXIS - 5, 1, 5);
      const text = formatMoment(ps, step);
      const room = Math.min(x - 3, this.width - context.measureText(text).width - 4);
      context.fillText(text, Math.max(room, GUTTER), AXIS / 2 - 1);
    }
    context.fillStyle = this.lines;
    context.fillRect(0, HEAD - 1, this.width, 1);
    context.fillStyle = this.ink;
    context.fillText("critical path", 21, AXIS + PATH / 2);
    const { path, things } = this.model;
    pen.eachVisible(path, (i, j, x, width, share) => {
      const which = j - i > 1 ? pen.longest(path, i, j) : i;
      const { name, kind } = things[path.thing[which]];
      pen.slice(this.colorOf(path.thing[which]), x, AXIS + 2, width, PATH - 5, share, name || kind);
    });
  }

  // What is at a place of the canvas: {row, lane, index}, a link, or a segment of the path.
  find(x, y) {
    if (x < GUTTER || x > this.width - 8) return null;
    const perPixel = (this.view.to - this.view.from) / (this.width - GUTTER - 8);
    const ps = this.view.from + (x - GUTTER) * perPixel;
    if (y > AXIS && y < AXIS + PATH) {
      const segment = firstAbove(this.model.path.end, ps);
      return segment < this.model.path.count ? { segment, ps } : null;
    }
    const row = y < HEAD ? null : this.rows.find((shown) => y >= this.top(shown) && y <= this.top(shown) + shown.height);
    if (!row) return null;
    if (row.kind === "link") return { row, link: row.link, ps };
    const inHost = row.host?.length && y > this.top(row) + row.height * 0.73;
    for (const lane of inHost ? row.host : row.lanes) {
      const index = sliceAt(lane, ps, 1.5 * perPixel);
      if (index >= 0) return { row, lane, index, ps };
    }
    return null;
  }

  describe(target) {
    const { things, path, links, endPs } = this.model;
    if (target.link !== undefined) {
      const bin = Math.min(links.bins - 1, Math.floor((target.ps / endPs) * links.bins));
      return [`link ${links.names[target.link]}`, `busy ${formatShare(links.busy[target.link * links.bins + bin], links.full)} of ${formatPs(endPs / links.bins)}`];
    }
    if (target.segment !== undefined) {
      const i = target.segment;
      const { kind, name } = things[path.thing[i]];
      return [`${name || kind}`, `segment ${i + 1} of ${path.count} of the critical path: ${SAID[kind] ?? kind}, rank ${path.rank[i]}`,
        `${formatPs(path.duration[i])} from ${formatMoment(path.start[i], 1000)}`];
    }
    const { lane, index } = target;
    const thing = things[lane.thing[index]];
    const durationPs = lane.end[index] - lane.start[index];
    const said = [
      thing.name || thing.kind,
      `${SAID[thing.kind] ?? thing.kind}${thing.algorithm ? `, ${thing.algorithm}` : ""}, rank ${lane.rank}${lane.kind === "stream" ? `, stream ${lane.label}` : ""}${lane.launch[index] ? `, launch ${lane.launch[index]}` : ""}`,
      `${formatPs(durationPs)} from ${formatMoment(lane.start[index], 1000)}`,
    ];
    if (lane.merged[index] > 1) return [...said, `${formatCount(lane.merged[index])} slices drawn as one`];
    if (lane.late[index]) said.push(`${formatPs(lane.late[index])} of it waiting for other ranks`);
    if (thing.flops && thing.kind === "kernel") said.push(`${formatAmount(thing.flops, "FLOP")}, ${formatAmount((thing.flops / durationPs) * 1e12, "FLOP/s")}`);
    if (thing.message_bytes) said.push(`message of ${formatBytes(thing.message_bytes)}`);
    else if (thing.hbm_bytes) said.push(`${formatBytes(thing.hbm_bytes)} of HBM, ${formatAmount((thing.hbm_bytes / durationPs) * 1e12, "B/s")}`);
    if (thing.bound_by) said.push(`held up by ${thing.bound_by}`);
    if (lane.kind === "stream" && lane.launch[index] && path.has(lane.launch[index], lane.rank)) said.push("on the critical path");
    return said;
  }

  zoom(factor, at = 0.5) {
    const { from, to } = this.view;
    const span = Math.min(Math.max((to - from) * factor, LEAST_VIEW_PS), this.model.endPs || 1);
    this.show(from + (to - from - span) * at, span);
  }

  show(from, span) {
    const wanted = Math.min(Math.max(span, LEAST_VIEW_PS), this.model.endPs || 1);
    const begin = Math.min(Math.max(from, 0), Math.max(0, this.model.endPs - wanted));
    this.view = { from: begin, to: begin + wanted };
    this.point();
    this.draw();
  }

  pan(share) {
    const span = this.view.to - this.view.from;
    this.show(this.view.from + span * share, span);
  }

  toggle(key) {
    if (!this.open.delete(key)) this.open.add(key);
    this.layOut();
  }

  // The middle of a launch on a rank, as a place in the window; brings it into view.
  reveal(rank, launch) {
    for (const lane of this.model.lanes) {
      const index = lane.rank === rank && lane.kind === "stream" ? lane.launch.indexOf(launch) : -1;
      if (index < 0) continue;
      const length = lane.end[index] - lane.start[index];
      this.show(lane.start[index] - 4 * length, 9 * length);
      const row = this.rowOf(rank, launch);
      this.box.scrollTop = Math.max(0, row.y - 60);
      this.drawNow();
      const pen = new Pen(this.context, this.view, GUTTER, this.width - GUTTER - 8);
      const frame = this.canvas.getBoundingClientRect();
      return { x: frame.x + pen.x((lane.start[index] + lane.end[index]) / 2), y: frame.y + this.top(row) + row.height * 0.35 };
    }
    return null;
  }

  listen() {
    const { canvas, box } = this;
    const place = (event) => {
      const frame = canvas.getBoundingClientRect();
      return { x: event.clientX - frame.x, y: event.clientY - frame.y };
    };
    // What lies under the pointer, whether it or the view has moved.
    let pointer = null;
    this.point = () => {
      const target = pointer && this.find(...pointer.at);
      if (target) tip.show(pointer.event, this.describe(target).join("\n"));
      else tip.hide();
    };
    const share = (x) => Math.min(Math.max((x - GUTTER) / (this.width - GUTTER - 8), 0), 1);
    let drag = null;
    canvas.addEventListener("pointerdown", (event) => {
      drag = { ...place(event), view: { ...this.view }, moved: false };
      canvas.setPointerCapture(event.pointerId);
    });
    canvas.addEventListener("pointermove", (event) => {
      const { x, y } = place(event);
      if (drag) {
        if (Math.abs(x - drag.x) > 3) drag.moved = true;
        const span = drag.view.to - drag.view.from;
        if (drag.moved) this.show(drag.view.from - ((x - drag.x) / (this.width - GUTTER - 8)) * span, span);
        return;
      }
      pointer = { event, at: [x, y] };
      this.point();
    });
    canvas.addEventListener("pointerup", (event) => {
      const wasClick = drag && !drag.moved;
      drag = null;
      if (!wasClick) return;
      const { x, y } = place(event);
      if (x < GUTTER) {
        const row = this.rows.find((shown) => y >= HEAD && y >= this.top(shown) && y <= this.top(shown) + shown.height + shown.gap);
        if (row?.key) this.toggle(row.key);
        return;
      }
      const target = this.find(x, y);
      this.picked = target?.lane ? target : null;
      this.draw();
      if (target) this.chosen(target, this.describe(target));
    });
    canvas.addEventListener("pointerleave", () => {
      pointer = null;
      tip.hide();
    });
    canvas.addEventListener("dblclick", (event) => {
      const { x } = place(event);
      if (x >= GUTTER) this.zoom(0.25, share(x));
    });
    canvas.addEventListener("wheel", (event) => {
      if (event.ctrlKey || event.metaKey) {
        event.preventDefault();
        this.zoom(1.0022 ** event.deltaY, share(place(event).x));
      } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) || event.shiftKey) {
        event.preventDefault();
        this.pan((event.deltaX || event.deltaY) / 1200);
      }
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const act = KEYS[event.key.toLowerCase()];
      if (!act || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      act(this);
    });
    box.addEventListener("scroll", () => this.draw());
    new ResizeObserver(() => this.resize()).observe(box);
  }
}

const KEYS = {
  w: (timeline) => timeline.zoom(0.6), "+": (timeline) => timeline.zoom(0.6),
  s: (timeline) => timeline.zoom(1.67), "-": (timeline) => timeline.zoom(1.67),
  a: (timeline) => timeline.pan(-0.2), arrowleft: (timeline) => timeline.pan(-0.2),
  d: (timeline) => timeline.pan(0.2), arrowright: (timeline) => timeline.pan(0.2),
  0: (timeline) => timeline.show(0, Infinity),
};

const SAID = {
  kernel: "kernel", collective: "collective", copy: "copy", fill: "fill",
  launch: "launch by the host", capture: "capture by the host", python: "the host's Python",
  dispatch: "operation of the host", allocate: "allocation by the host", read: "read by the host",
  wait: "the host waits", host: "host",
};
