// What devices draw over time, and where their energy goes.

const ENERGY_COLORS = {
  GEMM: "#0072b2", math: "#56b4e9", TCM: "#3f7fa8", cache: "#66c7a8", HBM: "#009e73", links: "#e69f00",
  "host link": "#a9744f", clocks: "#8c6d31", idle: "#d5d9de",
};
const energyColor = (part) => inTheme(ENERGY_COLORS[part] ?? "#8f9aa6");
const ENERGY_UNITS = [[1e6, "MJ"], [1e3, "kJ"], [1, "J"], [1e-3, "mJ"], [1e-6, "µJ"], [1e-9, "nJ"]];

function formatJoules(joules) {
  if (!joules) return "0";
  const [size, unit] = ENERGY_UNITS.find(([unitJoules]) => joules >= 0.9995 * unitJoules) ?? ENERGY_UNITS.at(-1);
  return `${threeDigits(joules / size)} ${unit}`;
}

function powerCurve(energy, milliwatts, endPs, ranks, width) {
  const scale = timeScale(endPs);
  const rows = [];
  for (let bin = 0; bin < energy.bins; bin++) {
    const [mean, least, most] = ["mean", "least", "most"].map((name) => milliwatts[name][bin] / 1000);
    rows.push({ time: (((bin + 0.5) / energy.bins) * endPs) / scale.size, mean, least, most });
  }
  const limit = energy.board_w && energy.peak_w > energy.board_w / 3 ? [energy.board_w] : [];
  return Plot.plot({
    ariaLabel: "Power of a device over time",
    width, height: 240, marginLeft: 58, marginRight: 24, marginTop: 26, marginBottom: 38,
    x: { label: `time (${scale.unit}) →`, domain: [0, endPs / scale.size] },
    y: { label: "↑ power of a device (W)", grid: true, zero: true },
    marks: [
      ranks > 1 ? Plot.areaY(rows, { x: "time", y1: "least", y2: "most", fill: themed("--accent"), fillOpacity: 0.2, curve: "step" }) : null,
      Plot.lineY(rows, { x: "time", y: "mean", stroke: themed("--accent"), strokeWidth: 1.4, curve: "step" }),
      Plot.ruleY(limit, { stroke: "currentColor", strokeDasharray: "4 4" }),
      Plot.text(limit, { x: () => endPs / scale.size, y: (watts) => watts, text: (watts) => `limit of the board, ${watts} W`, textAnchor: "end", dy: -7 }),
      Plot.ruleY([0]),
      Plot.tip(rows, Plot.pointerX({
        x: "time", y: "mean", fill: themed("--paper"), stroke: themed("--line"),
        title: (row) => [`${row.mean.toFixed(0)} W on average`, ...(ranks > 1 ? [`${row.least.toFixed(0)} to ${row.most.toFixed(0)} W`] : [])].join("\n"),
      })),
    ],
  });
}

function energyParts(energy) {
  const parts = Object.entries(energy.parts_j).sort((a, b) => b[1] - a[1]);
  return el("div", {},
    el("div", { class: "stack", role: "img", "aria-label": "Where the energy goes" }, parts.map(([part, joules]) =>
      el("div", { style: { flex: `${joules} 1 0`, background: energyColor(part), color: textOn(energyColor(part)) } },
        joules > energy.energy_j * 0.09 ? `${part} ${formatShare(joules, energy.energy_j)}` : ""))),
    legend(parts.map(([part, joules]) => ({ label: part, color: energyColor(part), value: formatJoules(joules) }))));
}
