// Who sends how much to whom: a matrix of ranks.

function communicationMatrix(sent, width) {
  const perCell = sent.ranks_per_cell;
  const size = sent.bytes.length;
  const named = (cell) => (perCell === 1 ? `rank ${cell}` : `ranks ${cell * perCell} to ${Math.min(sent.ranks, (cell + 1) * perCell) - 1}`);
  const cells = [];
  sent.bytes.forEach((row, from) => row.forEach((bytes, to) => bytes && cells.push({ from, to, bytes })));
  const side = Math.min(width, 560, 90 + size * 46);
  const roomy = (side - 64) / size >= 46; // for a cell's bytes
  const dark = document.documentElement.dataset.theme === "dark";
  const most = Math.max(...cells.map((cell) => cell.bytes));
  const least = Math.min(...cells.map((cell) => cell.bytes));
  const labels = size > 16 ? d3.range(0, size, size > 32 ? 8 : 4) : undefined;
  const tickFormat = (cell) => String(cell * perCell);
  const picture = Plot.plot({
    ariaLabel: "Bytes that each rank sends to each other one", width: side, height: side, marginLeft: 54, marginTop: 46, marginRight: 10, marginBottom: 10,
    x: { axis: "top", domain: d3.range(size), label: "receiving rank →", ticks: labels, tickFormat, tickSize: 3, padding: size > 24 ? 0 : 0.06 },
    y: { domain: d3.range(size), label: "↓ sending rank", ticks: labels, tickFormat, tickSize: 3, padding: size > 24 ? 0 : 0.06 },
    color: { type: "linear", legend: size > 8 || !roomy, label: "bytes from one rank to another", tickFormat: (bytes) => formatBytes(bytes), ticks: 4, domain: [0, most], interpolate: dark ? (t) => d3.interpolateViridis(0.15 + 0.85 * t) : (t) => d3.interpolateViridis(1 - 0.9 * t) },
    marks: [
      Plot.cell(cells, { x: "to", y: "from", fill: "bytes", shapeRendering: size > 24 ? "crispEdges" : undefined, title: (cell) => `${named(cell.from)} sends ${formatBytes(cell.bytes)} to ${named(cell.to)}`, tip: { fill: themed("--paper"), stroke: themed("--line") } }),
      ...(size <= 8 && roomy ? [Plot.text(cells, { x: "to", y: "from", text: (cell) => formatBytes(cell.bytes), fill: (cell) => ((cell.bytes / most > 0.5) === !dark ? "#fff" : "#16191d") })] : []),
      Plot.frame({ strokeOpacity: 0.3 }),
    ],
  });
  const said = least === most
    ? `Each of ${plural(cells.length, "pair")} that talk moves ${formatBytes(most)}.`
    : `A pair that talks moves between ${formatBytes(least)} and ${formatBytes(most)}.`;
  return el("div", {}, picture, el("p", { class: "quiet" }, said));
}
