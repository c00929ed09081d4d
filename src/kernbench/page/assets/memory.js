// Bytes in use over time, stacked by what they are for.

const PHASE_COLORS = {
  weights: "#2166ac", buffers: "#74add1", "optimizer state": "#6a3d9a", gradients: "#cc79a7",
  activations: "#1b7837", "KV cache": "#7fbf7b", communication: "#e69f00", temporaries: "#b2182b",
  other: "#8f9aa6", rounding: "#cfd4da",
};
const phaseColor = (phase) => inTheme(PHASE_COLORS[phase] ?? "#8f9aa6");

// Memory is counted in powers of two.
function formatSize(bytes) {
  for (const [size, unit] of [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]]) {
    if (bytes >= 0.9995 * size) return `${threeDigits(bytes / size)} ${unit}`;
  }
  return `${bytes.toFixed(0)} B`;
}

function memoryCurve(memory, values, owner, endPs, width) {
  const { phases, bins } = memory;
  const scale = timeScale(endPs);
  const most = memory.owners[owner].peak_bytes;
  const [size, unit] = [[2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"]].find(([bytes]) => most >= bytes) ?? [1, "B"];
  const rows = [];
  for (let bin = 0; bin < bins; bin++) {
    phases.forEach((phase, place) => {
      const bytes = values[(owner * bins + bin) * phases.length + place];
      // Steps: what holds in a part begins where it does.
      for (const edge of [bin, bin + 0.999]) rows.push({ phase, time: ((edge / bins) * endPs) / scale.size, bytes: bytes / size });
    });
  }
  const used = phases.filter((phase) => rows.some((row) => row.phase === phase && row.bytes));
  const moments = d3.range(bins).map((bin) => {
    const parts = phases.map((phase, place) => [phase, values[(owner * bins + bin) * phases.length + place]]).filter(([, bytes]) => bytes);
    const sum = parts.reduce((all, [, bytes]) => all + bytes, 0);
    return { time: (((bin + 0.5) / bins) * endPs) / scale.size, sum: sum / size, said: [`${formatSize(sum)} at ${formatPs(((bin + 0.5) / bins) * endPs)}`, ...parts.sort((a, b) => b[1] - a[1]).map(([phase, bytes]) => `${phase} ${formatSize(bytes)}`)] };
  });
  return el("div", {}, legend(used.map((phase) => ({ label: phase, color: phaseColor(phase) }))), Plot.plot({
    ariaLabel: "Memory in use over time, by what it is for",
    width, height: 300, marginLeft: 62, marginRight: 24, marginBottom: 38, marginTop: 26,
    x: { label: `time (${scale.unit}) →`, domain: [0, endPs / scale.size] },
    y: { label: `↑ in use (${unit})`, grid: true },
    color: { type: "identity" },
    marks: [
      Plot.areaY(rows.filter((row) => used.includes(row.phase)), { x: "time", y: "bytes", z: "phase", fill: (row) => phaseColor(row.phase), order: used }),
      Plot.ruleY([0]),
      Plot.ruleX(moments, Plot.pointerX({ x: "time", stroke: "currentColor", strokeOpacity: 0.5 })),
      Plot.tip(moments, Plot.pointerX({ x: "time", y: "sum", fill: themed("--paper"), stroke: themed("--line"), title: (moment) => moment.said.join("\n") })),
    ],
  }));
}

function partsTable(title, parts, whole, named = (name) => name) {
  return el("div", { class: "wide" }, table([
    { title, text: true, of: (row) => row.name, show: (row) => el("span", { title: row.name }, title === "phase" ? swatch(phaseColor(row.name)) : null, named(row.name) || "(none)") },
    { title: "tensors", of: (row) => row.tensors, show: (row) => formatCount(row.tensors) },
    { title: "bytes", of: (row) => row.bytes, show: (row) => formatSize(row.bytes) },
    { title: "share", of: (row) => row.bytes, show: (row) => formatShare(row.bytes, whole) },
  ], parts));
}
