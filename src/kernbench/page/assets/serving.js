// Requests of a load on a timeline, and the batch of each step.

const REQUEST_COLORS = { "in queue": "#e69f00", prefill: "#0072b2", decode: "#009e73" };
const requestColor = (part) => inTheme(REQUEST_COLORS[part]);
const PS_PER_S = 1e12;
const MOST_REQUESTS = 300;

const showSeconds = (seconds) => (seconds === null || seconds === undefined ? "–" : formatPs(seconds * PS_PER_S));

// When each part of a request began and ended; what is not known of the queue is prefill.
function partsOf(row) {
  const first = row.arrival_s + row.ttft_s;
  const begun = row.arrival_s + (row.queue_s ?? 0);
  return [["in queue", row.arrival_s, begun], ["prefill", begun, first], ["decode", first, row.arrival_s + row.e2e_s]];
}

function requestBars(load, width) {
  const shown = load.requests.slice(0, MOST_REQUESTS);
  const endPs = PS_PER_S * Math.max(...shown.map((row) => row.arrival_s + row.e2e_s));
  const scale = timeScale(endPs);
  const bars = shown.flatMap((row) => partsOf(row).map(([part, begin, end]) => ({
    request: row.request, part, begin: (begin * PS_PER_S) / scale.size, end: (end * PS_PER_S) / scale.size,
    said: [`request ${row.request}, ${part} ${formatPs((end - begin) * PS_PER_S)}`,
      `${formatCount(row.input_tokens)} tokens in, ${formatCount(row.output_tokens)} out${row.cached_tokens ? `, ${formatCount(row.cached_tokens)} of the cache` : ""}`,
      `TTFT ${showSeconds(row.ttft_s)}, TPOT ${showSeconds(row.tpot_s)}${row.preemptions ? `, preempted ${row.preemptions} times` : ""}`].join("\n"),
  })));
  const step = shown.length > 100 ? 4 : shown.length > 40 ? 8 : 14;
  return Plot.plot({
    width, height: 64 + step * shown.length, marginLeft: 58, marginRight: 24, marginTop: 34,
    x: { axis: "top", label: `time of the load (${scale.unit}) →`, labelAnchor: "right", grid: true, domain: [0, endPs / scale.size] },
    y: { label: "request", type: "band", padding: 0.15, tickSize: 0, ticks: shown.length > 40 ? [] : undefined },
    color: { type: "identity" },
    marks: [Plot.barX(bars, { x1: "begin", x2: "end", y: "request", fill: (bar) => requestColor(bar.part), title: "said", tip: { fill: themed("--paper"), stroke: themed("--line") } })],
  });
}

function batchCurve(load, width) {
  const endPs = PS_PER_S * load.steps.at(-1).end_s;
  const scale = timeScale(endPs);
  const rows = load.steps.map((step) => ({ ...step, time: (step.end_s * PS_PER_S) / scale.size }));
  return Plot.plot({
    width, height: 200, marginLeft: 58, marginRight: 24, marginTop: 26, marginBottom: 38,
    x: { label: `time of the load (${scale.unit}) →`, domain: [0, endPs / scale.size] },
    y: { label: "↑ requests that run, and that wait", grid: true, zero: true },
    marks: [
      Plot.areaY(rows, { x: "time", y: "running", fill: requestColor("decode"), fillOpacity: 0.3, curve: "step-before" }),
      Plot.lineY(rows, { x: "time", y: "waiting", stroke: requestColor("in queue"), curve: "step-before" }),
      Plot.ruleY([0]),
      Plot.tip(rows, Plot.pointerX({
        x: "time", y: "running", fill: themed("--paper"), stroke: themed("--line"),
        title: (row) => `a step of ${formatPs((row.end_s - row.begin_s) * PS_PER_S)}\n${row.tokens} tokens, ${row.first_tokens} of them first ones\n${row.running} run, ${row.waiting} wait\ncache ${formatShare(row.kv_share, 1)} full`,
      })),
    ],
  });
}

// Why the first token takes as long as it does.
function firstTokens(serving) {
  const parts = serving.queue_s ? `: ${showSeconds(serving.queue_s.mean)} in queue, until the engine first schedules a request, and ${showSeconds(serving.prefill_s.mean)} from there, in steps that it shares with others` : "";
  return el("p", {}, "The first token comes after ", el("b", {}, showSeconds(serving.ttft_s.mean)), ` on average (p99 ${showSeconds(serving.ttft_s.p99)})${parts}. A further one takes ${showSeconds(serving.tpot_s?.mean)}. `,
    `Up to ${plural(serving.running_peak, "request")} ran and ${serving.waiting_peak} waited at a time; the cache was ${formatShare(serving.kv_share_peak, 1)} full at most${serving.preemptions ? `, and requests lost their place ${serving.preemptions} times` : ""}.`);
}

function showServing() {
  const { serving } = data;
  if (!serving) return;
  section("serving", "Serving",
    el("p", {}, `${serving.engine}, ${serving.model} on ${plural(serving.devices, "device")}.`),
    ...serving.loads.flatMap((load, place) => [
      el("h3", {}, load.load),
      firstTokens(load.figures),
      legend(Object.keys(REQUEST_COLORS).map((label) => ({ label, color: requestColor(label) }))),
      picture(el("div", { class: "chart", id: `requests-${place}` }), (width) => requestBars(load, width)),
      moreThan(Math.min(load.requests.length, MOST_REQUESTS), load.requests.length, "later"),
      picture(el("div", { class: "chart", id: `batches-${place}` }), (width) => batchCurve(load, width)),
    ]));
}
