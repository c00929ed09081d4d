// Rates of kernels, or of a kernel's lines, under the roofs of one device.

const ROOFLINE_LABELS = 7;

function rooflinePoints(kernels) {
  return kernels.filter((kernel) => kernel.flops && kernel.bytes && kernel.time_ns).map((kernel) => ({
    name: kernel.name, intensity: kernel.flops / kernel.bytes, rate: (kernel.flops / kernel.time_ns) * 1e9, timePs: kernel.time_ns * 1000,
    said: [`${formatPs(kernel.time_ns * 1000)} in ${plural(kernel.launches, "launch")}`, `${formatShare(kernel.utilization, 1)} of what the device could do at most`],
  }));
}

// A line's rate while its engines work on it; its bytes are the kernel's.
function linePoints(kernel, roofs) {
  const points = [];
  for (const file of kernel.files) {
    for (const line of file.lines) {
      if (!line.line || !line.flops || !kernel.bytes || !line.busy_ns) continue;
      points.push({
        name: placeOf(file.file, line.line), intensity: kernel.flops / kernel.bytes,
        rate: (line.flops / line.busy_ns) * roofs.num_pes * 1e9, timePs: line.time_ns * 1000,
        said: [line.text.trim().slice(0, 70), `${formatPs(line.time_ns * 1000)} of ${kernel.name}; the rate is that while ${line.engine} is busy with it`],
      });
    }
  }
  const whole = rooflinePoints([kernel]).map((point) => ({ ...point, isWhole: true }));
  return points.length ? [...whole, ...points] : [];
}

function roofline(points, roofs, { width, color, selected, choose }) {
  const hbm = roofs.hbm_bytes_per_ns * 1e9;
  const cache = roofs.cache_bytes_per_ns && roofs.cache_bytes_per_ns * 1e9;
  const peaks = roofs.matrix.map((peak) => ({ ...peak, rate: peak.flops_per_ns * 1e9 }));
  const top = Math.max(...peaks.map((peak) => peak.rate));
  const ridge = top / hbm;
  const low = Math.min(ridge / 1000, ...points.map((point) => point.intensity / 4));
  const high = Math.max(ridge * 30, ...points.map((point) => point.intensity * 6));
  const floor = Math.min(top / 1e4, ...points.map((point) => point.rate / 5));
  const under = (rate, bandwidth) => [low, rate / bandwidth, high].map((x) => ({ x, y: Math.min(rate, bandwidth * x) }));
  const longest = [...points].sort((a, b) => b.timePs - a.timePs);
  const whole = longest.reduce((sum, point) => sum + (point.isWhole ? 0 : point.timePs), 0) || 1;
  const size = (point) => (point.isWhole ? 7 : 4 + 10 * Math.sqrt(point.timePs / whole));
  const fill = (point) => (point.isWhole ? "none" : color(point.name));
  const chart = Plot.plot({
    ariaLabel: "Roofline: what kernels reach of a device's peaks",
    width, height: Math.min(460, Math.max(320, width * 0.55)), marginLeft: 76, marginRight: 24, marginTop: 26, marginBottom: 42,
    x: { type: "log", domain: [low, high], label: "FLOP per byte of HBM →", ticks: powersOfTen(low, high), tickFormat: formatLog, grid: true },
    y: { type: "log", domain: [floor, top * 3], label: "↑ FLOP/s of one device", ticks: powersOfTen(floor, top * 3), tickFormat: (y) => formatAmount(y, "").replace(".00", "").replace(".0", ""), grid: true },
    r: { type: "identity" },
    color: { type: "identity" },
    marks: [
      ...peaks.map((peak) => Plot.line(under(peak.rate, hbm), { x: "x", y: "y", stroke: "currentColor", strokeOpacity: peak.rate === top ? 0.9 : 0.35, strokeWidth: 1.3 })),
      ...(cache ? [Plot.line(under(top, cache), { x: "x", y: "y", stroke: "currentColor", strokeOpacity: 0.4, strokeDasharray: "4 4" })] : []),
      Plot.text(peaks, { x: () => high, y: "rate", text: (peak) => `${peak.dtype}, ${formatAmount(peak.rate, "FLOP/s")}`, textAnchor: "end", dy: -7, dx: -4, fill: "currentColor", fillOpacity: 0.75 }),
      Plot.dot(points, { x: "intensity", y: "rate", r: size, fill, fillOpacity: 0.85, stroke: (point) => (point.name === selected || point.isWhole ? "currentColor" : fill(point)), strokeWidth: (point) => (point.name === selected || point.isWhole ? 2 : 0.5) }),
      // An offset is the mark's, not the datum's.
      ...apart(longest, (point) => [Math.log(point.intensity) / Math.log(high / low), Math.log(point.rate) / Math.log((top * 3) / floor)]).map((point) =>
        Plot.text([point], { x: "intensity", y: "rate", text: "name", textAnchor: "start", dx: size(point) + 4, fill: "currentColor", stroke: themed("--paper"), strokeWidth: 3 })),
      Plot.tip(points, Plot.pointer({
        x: "intensity", y: "rate", fill: themed("--paper"), stroke: themed("--line"),
        title: (point) => [point.name, `${formatAmount(point.rate, "FLOP/s")} at ${formatLog(point.intensity)} FLOP per byte`, ...point.said].join("\n"),
      })),
    ],
  });
  chart.addEventListener("click", () => chart.value && choose?.(chart.value.name));
  return chart;
}

function formatLog(value) {
  if (value >= 1) return Number(value.toPrecision(3)).toLocaleString("en");
  return String(Number(value.toPrecision(1)));
}

function powersOfTen(low, high) {
  const powers = [];
  for (let power = Math.ceil(Math.log10(low)); power <= Math.log10(high); power++) powers.push(10 ** power);
  return powers;
}

// The first few whose names do not lie on each other; places are shares of the picture's sides.
function apart(points, placeOf) {
  const chosen = [];
  for (const point of points) {
    const [x, y] = placeOf(point);
    const isFree = chosen.every(([, left, top]) => Math.abs(left - x) > 0.16 || Math.abs(top - y) > 0.04);
    if (isFree && chosen.push([point, x, y]) === ROOFLINE_LABELS) break;
  }
  return chosen.map(([point]) => point);
}
