// Bars: the time of all ranks and of each one, and what changed between two runs.

// Draws when the box comes into view, or else when the browser has nothing to do or prints; and
// again when its width or the theme changes.
const pictures = [];
const undrawn = new Set();
// A browser without a window may never be idle, and Safari does not say.
const whenIdle = (call) => (window.requestIdleCallback ? requestIdleCallback(call, { timeout: 300 }) : setTimeout(call, 100));
function picture(box, draw) {
  let width = 0;
  const redraw = () => {
    width = box.clientWidth;
    if (!width) return;
    box.replaceChildren(draw(width));
    box.dataset.drawn = "true";
  };
  const first = () => {
    if (!undrawn.delete(first)) return;
    seen.disconnect();
    redraw();
    new ResizeObserver(() => Math.abs(box.clientWidth - width) > 4 && redraw()).observe(box);
    pictures.push(redraw);
  };
  const seen = new IntersectionObserver((entries) => entries.some((entry) => entry.isIntersecting) && first(), { rootMargin: "400px" });
  undrawn.add(first);
  seen.observe(box);
  if (undrawn.size === 1) whenIdle(drawNext);
  return box;
}

// One at a time, so that the page answers meanwhile.
function drawNext() {
  const [first] = undrawn;
  first?.();
  if (undrawn.size) whenIdle(drawNext);
}

window.addEventListener("beforeprint", () => [...undrawn].forEach((first) => first()));

function overview(times, ranks, wholePs) {
  const entries = times.resources.map((name, place) => ({
    name, meanPs: times.by_rank[place].reduce((sum, ps) => sum + ps, 0) / ranks, color: resourceColor(name),
  }));
  const bar = el("div", { class: "stack", role: "img", "aria-label": "Where the time of a rank goes, on average" },
    entries.filter((entry) => entry.meanPs > wholePs * 0.0005).map((entry) =>
      el("div", {
        style: { flex: `${entry.meanPs} 1 0`, background: entry.color, color: textOn(entry.color) },
        onpointermove: (event) => tip.show(event, `${entry.name}\n${formatPs(entry.meanPs)}, ${formatShare(entry.meanPs, wholePs)} of a rank's time`),
        onpointerleave: tip.hide,
      }, entry.meanPs > wholePs * 0.09 ? `${entry.name} ${formatShare(entry.meanPs, wholePs)}` : "")));
  return [bar, legend(entries.map((entry) => ({ label: entry.name, color: entry.color, value: formatPs(entry.meanPs) })))];
}

function rankBars(times, wholePs, width) {
  const ranks = times.ranks.length;
  const scale = timeScale(wholePs);
  const rows = [];
  for (let at = 0; at < ranks; at++) {
    const rank = times.ranks[at];
    times.resources.forEach((resource, place) => {
      const ps = times.by_rank[place][at];
      if (ps) rows.push({ rank, resource, time: ps / scale.size, share: formatShare(ps, wholePs), said: formatPs(ps) });
    });
  }
  const step = ranks > 64 ? 7 : ranks > 32 ? 10 : ranks > 16 ? 14 : 22;
  return Plot.plot({
    ariaLabel: "Time of each rank, by what it went to",
    width, marginLeft: 58, marginRight: 24, marginTop: 34, height: 54 + step * ranks,
    x: { axis: "top", label: `time of a rank (${scale.unit}) →`, labelAnchor: "right", grid: true, domain: [0, wholePs / scale.size] },
    y: { label: "rank", type: "band", padding: ranks > 16 ? 0.06 : 0.18, tickSize: 0, ticks: ranks > 32 ? times.ranks.filter((_, at) => at % (ranks > 64 ? 8 : 4) === 0) : undefined },
    color: { type: "identity" },
    marks: [
      Plot.barX(rows, {
        x: "time", y: "rank", fill: (row) => resourceColor(row.resource), insetRight: 0.5,
        tip: { fill: themed("--paper"), stroke: themed("--line") }, order: times.resources, z: "resource",
        channels: { resource: "resource", took: "said", share: "share" },
        title: (row) => `rank ${row.rank}: ${row.resource}\n${row.said}, ${row.share}`,
      }),
    ],
  });
}

function timeScale(wholePs) {
  const [size, unit] = TIME_UNITS.find(([ps]) => wholePs >= ps) ?? [1, "ps"];
  return { size, unit };
}

// What each contribution adds to the first run's time, until it is the second one's.
function changeBars(changes, width) {
  const all = changes.contributions.filter((change) => change.difference_ns);
  const shown = all.slice(0, 14);
  const rest = all.slice(14).reduce((sum, change) => sum + change.difference_ns, 0);
  const scale = timeScale(Math.max(changes.before_ns, changes.after_ns) * 1000);
  let at = (changes.before_ns * 1000) / scale.size;
  const named = (change) => (change.name && change.name !== change.resource ? `${change.name} · ${change.resource}` : change.resource);
  const rows = [{ label: "first run", from: 0, to: at, sign: 0, said: formatPs(changes.before_ns * 1000) }];
  for (const part of [...shown.map((it) => ({ label: named(it), ps: it.difference_ns * 1000, causes: it.causes })),
    ...(rest ? [{ label: `${all.length - shown.length} others`, ps: rest * 1000, causes: [] }] : [])]) {
    const next = at + part.ps / scale.size;
    rows.push({ label: part.label, from: at, to: next, sign: Math.sign(part.ps), causes: part.causes, said: `${part.ps > 0 ? "+" : "−"}${formatPs(Math.abs(part.ps))}` });
    at = next;
  }
  rows.push({ label: "second run", from: 0, to: (changes.after_ns * 1000) / scale.size, sign: 0, said: formatPs(changes.after_ns * 1000) });
  const colors = { "-1": themed("--better"), 0: themed("--quiet"), 1: themed("--worse") };
  const right = (row) => Math.max(row.from, row.to);
  return Plot.plot({
    ariaLabel: "What changed between the two runs",
    width, marginLeft: Math.min(260, width * 0.3), marginRight: 90, height: 50 + 24 * rows.length, marginTop: 34,
    x: { axis: "top", label: `time of a rank, mean of all (${scale.unit}) →`, labelAnchor: "right", grid: true, zero: true },
    y: { label: null, domain: rows.map((row) => row.label), tickSize: 0, tickFormat: (label) => (label.length > 38 ? `${label.slice(0, 37)}…` : label) },
    marks: [
      Plot.rect(rows, {
        x1: "from", x2: "to", y: "label", fill: (row) => colors[row.sign], insetTop: 3, insetBottom: 3,
        title: (row) => [`${row.label}: ${row.said}`, ...(row.causes ?? [])].join("\n"), tip: { fill: themed("--paper"), stroke: themed("--line") },
      }),
      Plot.text(rows, { x: right, y: "label", text: "said", textAnchor: "start", dx: 6, fill: "currentColor" }),
      Plot.ruleX([0]),
    ],
  });
}
