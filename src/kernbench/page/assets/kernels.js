// The lines of a kernel, with their time.

function linesOf(kernel, roofs) {
  if (!kernel.files.length) return [el("p", { class: "quiet" }, "The lines of this kernel are not in the page: others take more time. See "), el("code", {}, `kernbench why RUN --lines ${kernel.name}`)];
  if (kernel.files.every((file) => file.lines.every((line) => line.line === 0))) return [el("p", { class: "quiet" }, "This is a kernel of a library, modeled as a whole: it has no source lines.")];
  return kernel.files.map((file) => {
    const whole = kernel.time_ns;
    const head = el("p", { class: "code quiet", title: file.file }, shortFile(file.file) || "without a source line");
    const rows = file.lines.map((line) => {
      if (line.line < 0) return el("tr", { class: "gap" }, el("td"), el("td"), el("td"), el("td", { class: "minor" }), el("td", { class: "source code" }, "⋮"));
      const timed = line.time_ns !== undefined;
      const share = timed ? line.time_ns / whole : 0;
      const row = el("tr", { class: timed ? "heat" : "" },
        el("td", { class: "number quiet" }, line.line ? String(line.line) : "–"),
        el("td", { class: "number" }, timed ? formatPs(line.time_ns * 1000) : ""),
        el("td", { class: "number" }, timed ? formatShare(line.time_ns, whole) : ""),
        el("td", { class: "number minor" }, timed ? rateOf(line, roofs) : ""),
        el("td", { class: "source code", title: line.text.trim() }, line.text));
      row.style.setProperty("--heat", String(share));
      return row;
    });
    return el("div", {}, head, el("div", { class: "wide scroll" }, el("table", { class: "lines" },
      el("thead", {}, el("tr", {}, ["line", "time", "share", "while busy", "source"].map((title) => el("th", { class: title === "source" ? "text" : title === "while busy" ? "number minor" : "number" }, title)))),
      el("tbody", {}, rows))));
  });
}

// What a line's engines do while they are busy with it, all together.
function rateOf(line, roofs) {
  if (!line.busy_ns || !line.line) return "";
  const perSecond = (amount) => (amount / line.busy_ns) * roofs.num_pes * 1e9;
  if (line.flops) return formatAmount(perSecond(line.flops), "FLOP/s");
  if (line.bytes) return formatAmount(perSecond(line.bytes), "B/s");
  return line.engine;
}

function kernelsTable(kernels, color, choose) {
  const whole = kernels.reduce((sum, kernel) => sum + kernel.time_ns, 0);
  return table([
    { title: "kernel", text: true, of: (row) => row.name, show: (row) => el("span", {}, swatch(color(row.name)), row.name) },
    { minor: true, title: "launches", of: (row) => row.launches, show: (row) => formatCount(row.launches) },
    { title: "time, all ranks", of: (row) => row.time_ns, show: (row) => el("span", {}, formatPs(row.time_ns * 1000), meter(row.time_ns / whole, color(row.name))) },
    { minor: true, title: "per launch", of: (row) => row.time_ns / row.launches, show: (row) => formatPs((row.time_ns * 1000) / row.launches) },
    { minor: true, title: "FLOP/s", of: (row) => row.flops / row.time_ns, show: (row) => (row.flops ? formatAmount((row.flops / row.time_ns) * 1e9, "") : "–") },
    { minor: true, title: "HBM B/s", of: (row) => row.bytes / row.time_ns, show: (row) => (row.bytes ? formatAmount((row.bytes / row.time_ns) * 1e9, "") : "–") },
    { title: "of peak", of: (row) => row.utilization, show: (row) => formatShare(row.utilization, 1) },
    { minor: true, title: "held up by", text: true, of: (row) => row.bound_by },
  ], kernels, { choose, attributes: (row) => ({ "data-kernel": row.name }) });
}

// Two kernels side by side: rates, what holds them up, what they were launched with.
function sideBySide(left, right) {
  const facts = [
    ["launches", (row) => formatCount(row.launches)],
    ["time, all ranks", (row) => formatPs(row.time_ns * 1000)],
    ["per launch", (row) => formatPs((row.time_ns * 1000) / row.launches)],
    ["FLOP/s", (row) => (row.flops ? formatAmount((row.flops / row.time_ns) * 1e9, "") : "–")],
    ["HBM B/s", (row) => (row.bytes ? formatAmount((row.bytes / row.time_ns) * 1e9, "") : "–")],
    ["FLOP per byte of HBM", (row) => (row.flops && row.bytes ? (row.flops / row.bytes).toPrecision(3) : "–")],
    ["of peak", (row) => formatShare(row.utilization, 1)],
    ["held up by", (row) => row.bound_by || "–"],
    ...[...new Set([...Object.keys(left.with), ...Object.keys(right.with)])].map((name) => [name, (row) => row.with[name] ?? "–"]),
  ];
  return table([
    { title: "", text: true, show: ([name]) => name },
    { title: left.name, show: ([, show]) => show(left) },
    { title: right.name, show: ([, show]) => show(right) },
  ], facts);
}
