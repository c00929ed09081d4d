// Puts the page together, the first picture first.

const data = JSON.parse(byId("data").textContent);
const color = kernelColors(data.kernels.kernels);
const sections = [];
// The part of the run that tables and bars are of: all of it, a step, a range.
let part = data.parts[data.part];
const timesOfPart = () => part.times ?? data.times;
// Kernels by what they did in that part; their lines and files are known of the whole run.
const kernelsOfPart = () => part.kernels ?? data.kernels.kernels;

function section(id, title, ...content) {
  const box = el("section", { id }, el("h2", {}, title), content);
  sections.push({ id, title });
  byId("sections").append(box);
  return box;
}

function showTop() {
  const { about } = data;
  const times = timesOfPart();
  byId("program").textContent = about.program || about.path;
  byId("about").textContent = [
    `${plural(about.ranks, "rank")} of ${about.machine}`, `topology ${about.topology}`, plural(about.launches, "launch"),
    about.wall_s ? `simulated in ${about.wall_s.toFixed(2)} s` : "", `kernbench ${about.version}`, about.path,
  ].filter(Boolean).join(" · ");
  byId("time").textContent = formatPs(part.time_ps);
  byId("part").textContent = part.said ? `${part.said}; the whole run takes ${formatPs(about.time_ps)}` : "";
  byId("overview").replaceChildren(...overview(times, times.ranks.length, part.time_ps));
  byId("overview").dataset.drawn = "true";
  if (times.resources.length) byId("verdict").replaceChildren(...verdict());
  // It is of all of the run.
  byId("accuracy").textContent = part.said ? "" : about.accuracy;
  byId("remarks").replaceChildren(...about.remarks.map((remark) => el("li", {}, remark)));
}

// What most of a rank's time goes to, in a sentence.
function verdict() {
  const times = timesOfPart();
  const [resource] = times.resources;
  const meanPs = times.by_rank[0].reduce((sum, ps) => sum + ps, 0) / times.ranks.length;
  const use = times.uses.find((user) => user.resource === resource);
  const where = use && placeOf(use.file, use.line);
  return [
    `Of the ${formatPs(part.time_ps)}${part.said ? ` of ${part.name}` : ""}, a rank spends `, el("b", {}, `${formatPs(meanPs)} (${formatShare(meanPs, part.time_ps)})`),
    " on ", el("b", {}, resource),
    ...(use && use.name !== resource ? [", mostly for ", el("b", {}, use.name), use.detail ? ` (${use.detail})` : "", where ? ` at ${where}` : ""] : []), ".",
  ];
}

function showChanges() {
  const { changes, about } = data;
  if (!changes) return;
  const share = changes.difference_ns / changes.before_ns;
  const said = changes.difference_ns ? `${Math.abs(100 * share).toFixed(1)} % ${share > 0 ? "slower" : "faster"}` : "as long";
  const rows = changes.contributions.filter((change) => change.difference_ns);
  section("changes", "What changed",
    el("p", {}, `${changes.before} took ${formatPs(changes.before_ns * 1000)} on ${plural(changes.before_about.ranks, "rank")} of ${changes.before_about.machine}; this run, ${changes.after}, takes ${formatPs(changes.after_ns * 1000)} on ${plural(about.ranks, "rank")} of ${about.machine}: `, el("b", { class: share > 0 ? "worse" : "better" }, said), ". The parts add up to the difference."),
    picture(el("div", { class: "chart", id: "change-bars" }), (width) => changeBars(changes, width)),
    el("div", { class: "wide scroll" }, table([
      { title: "what", text: true, of: (row) => row.name || "–" },
      { minor: true, title: "held up by", text: true, of: (row) => row.resource },
      { minor: true, title: "before", of: (row) => row.before_ns, show: (row) => formatPs(row.before_ns * 1000) },
      { minor: true, title: "after", of: (row) => row.after_ns, show: (row) => formatPs(row.after_ns * 1000) },
      { title: "difference", of: (row) => row.difference_ns, show: (row) => el("span", { class: row.difference_ns > 0 ? "worse" : "better" }, `${row.difference_ns > 0 ? "+" : "−"}${formatPs(Math.abs(row.difference_ns) * 1000)}`) },
      { minor: true, title: "because", text: true, show: (row) => row.causes.join("; ") },
    ], rows)));
}

// Changes that were tried, each with what it has gained.
function findingsTable() {
  const { findings } = data;
  if (!findings) return el("p", { class: "quiet" }, "With --findings, kernbench report tries what would save time.");
  if (!findings.findings.length) return el("p", {}, `Of ${plural(findings.tried, "change")} that ${findings.tried === 1 ? "was" : "were"} tried, none ends the run sooner.`);
  const most = findings.findings[0].gain_ns;
  return el("div", { id: "gains", "data-drawn": "true" },
    el("h3", {}, "Findings"),
    el("p", { class: "quiet" }, `The run was done again with each of ${plural(findings.tried, "change")}; the gain is by how much sooner ${findings.part ? "that part of it" : "it"} ended. Gains do not add up.`), findings.part ? el("p", { class: "quiet" }, `Of ${findings.part}.`) : null,
    el("div", { class: "wide scroll" }, table([
      { title: "what if", text: true, of: (row) => row.what, show: (row) => el("span", {}, el("b", {}, row.what), row.detail ? el("span", { class: "quiet" }, ` ${row.detail}`) : null) },
      { title: "gain", of: (row) => row.gain_ns, show: (row) => el("span", {}, `${formatPs(row.gain_ns * 1000)}, ${formatShare(row.gain_ns, findings.time_ns)}`, meter(row.gain_ns / most)) },
      { minor: true, title: "the run then takes", of: (row) => row.time_ns, show: (row) => formatPs(row.time_ns * 1000) },
      { minor: true, title: "a rank spends on it", of: (row) => row.spent_ns, show: (row) => formatPs(row.spent_ns * 1000) },
      { minor: true, title: "mostly", text: true, of: (row) => row.name, show: (row) => el("span", {}, kernelLink(row.name), el("span", { class: "quiet" }, ` ${row.held_up_by}`)) },
      { minor: true, title: "rank", of: (row) => row.rank },
      { minor: true, title: "at", text: true, of: (row) => placeOf(row.file, row.line), show: (row) => el("span", { class: "place", title: row.file }, placeOf(row.file, row.line)) },
      ...(findings.findings.every((row) => !row.errors.length) ? [] : [{ minor: true, title: "model's error", text: true, show: (row) => row.errors.map((kind) => `${kind.family} ${kind.error_percent === null ? "not measured" : `${kind.error_percent.toFixed(1)} %`}`).join(", ") }]),
    ], findings.findings)));
}

function showFindings() {
  section("findings", "What holds it up",
    el("p", { class: "quiet" }, "Every picosecond of every rank counts once. What is not on the critical path is not the reason for the length of the run."),
    findingsTable(), el("div", { class: "pair", id: "spent" }));
  showSpent();
}

function showSpent() {
  const times = timesOfPart();
  const wholePs = part.time_ps;
  const all = wholePs * times.ranks.length;
  byId("spent").replaceChildren(
      el("div", {}, el("h3", {}, "Time of all ranks"), el("div", { class: "wide scroll" }, table([
        { title: "for what", text: true, of: (row) => row.name, show: (row) => kernelLink(row.name) },
        { minor: true, title: "held up by", text: true, of: (row) => row.resource, show: (row) => el("span", {}, swatch(resourceColor(row.resource)), row.resource, row.detail ? el("span", { class: "quiet" }, ` ${row.detail}`) : null) },
        { minor: true, title: "mostly at", text: true, of: (row) => placeOf(row.file, row.line), show: (row) => el("span", { class: "place", title: row.file }, placeOf(row.file, row.line)) },
        { title: "time", of: (row) => row.time_ps, show: (row) => formatPs(row.time_ps) },
        { title: "share", of: (row) => row.time_ps, show: (row) => formatShare(row.time_ps, all) },
      ], times.uses)), times.rest_ps ? el("p", { class: "quiet" }, `${formatCount(times.num_uses - times.uses.length)} more, which are shorter: ${formatPs(times.rest_ps)}, ${formatShare(times.rest_ps, all)}.`) : null),
      el("div", {}, el("h3", {}, `Critical path: ${plural(times.num_segments, "segment")}`), el("div", { class: "wide scroll" }, table([
        { title: "what", text: true, of: (row) => row.name || row.kind, show: (row) => kernelLink(row.name || row.kind) },
        { minor: true, title: "is a", text: true, of: (row) => SAID[row.kind] ?? row.kind },
        { minor: true, title: "times", of: (row) => row.count, show: (row) => formatCount(row.count) },
        { title: "time", of: (row) => row.time_ps, show: (row) => formatPs(row.time_ps) },
        { title: "share", of: (row) => row.time_ps, show: (row) => formatShare(row.time_ps, wholePs) },
      ], times.path))));
}

const moreThan = (shown, all, how = "shorter") => (all > shown ? el("p", { class: "quiet" }, `${formatCount(all - shown)} more, which are ${how}.`) : null);

function kernelLink(name) {
  if (!data.kernels.kernels.some((kernel) => kernel.name === name)) return name;
  return el("a", { href: "#kernels", onclick: () => chooseKernel(name) }, name);
}

async function showTimeline() {
  const box = el("div", { id: "lanes" }, el("canvas", { tabindex: "0", role: "img", "aria-label": "Timeline of all ranks; zoom with w and s, move with a and d" }), el("div"));
  const details = el("div", { id: "picked", class: "quiet" }, "Click on anything to see what it is; on a kernel, its lines are shown below.");
  const tools = el("div", { class: "tools" });
  const names = el("ul", { class: "legend" });
  section("timeline", "Timeline",
    el("p", { class: "quiet" }, "Zoom with Ctrl and the wheel, a double click or w and s; drag, or a and d, to move. A click on a rank shows its host, streams and engines. Arrows lead to what was clicked on from its launch and from what it waited for, and on to what waits for it. Black (white) lines are the critical path; hatched is the time in which a rank waits for others."),
    tools, names, box, details);
  const model = await unpackTimeline(data.timeline);
  const timeline = new Timeline(box, model, color, (target, said) => {
    const name = target.lane ? model.things[target.lane.thing[target.index]] : target.segment !== undefined ? model.things[model.path.thing[target.segment]] : null;
    details.classList.remove("quiet");
    details.replaceChildren(el("b", {}, said[0]), ` ${said.slice(1).join(" · ")} `);
    if (name?.kind === "kernel") {
      chooseKernel(name.name);
      details.append(el("a", { href: "#lines" }, "its lines"));
    }
  });
  const path = el("button", { type: "button", "aria-pressed": "true", onclick: () => {
    timeline.showsPath = !timeline.showsPath;
    path.setAttribute("aria-pressed", String(timeline.showsPath));
    timeline.draw();
  } }, "Critical path");
  const engines = el("button", { type: "button", onclick: () => {
    const keys = timeline.rows.filter((row) => row.key).map((row) => row.key);
    const all = keys.every((key) => timeline.open.has(key));
    timeline.open = new Set(all ? [] : keys);
    timeline.layOut();
  } }, "Open or close all");
  const ranks = el("input", { type: "text", size: "8", placeholder: "0-3,8", "aria-label": "Ranks that are shown", oninput: () => {
    ranks.setAttribute("aria-invalid", String(!timeline.showRanks(ranks.value)));
  } });
  tools.append(
    ...(timeline.known.length > 1 ? [el("label", {}, "Ranks ", ranks)] : []),
    el("button", { type: "button", onclick: () => timeline.zoom(0.5) }, "Zoom in"),
    el("button", { type: "button", onclick: () => timeline.zoom(2) }, "Zoom out"),
    el("button", { type: "button", onclick: () => timeline.show(0, Infinity) }, "Whole run"), engines, path,
    model.joined ? el("span", { class: "quiet" }, `Of lanes with ${formatCount(model.joined)} slices together, neighbours are drawn as one.`) : "");
  fillTimelineLegend(names, model, timeline);
  window.addEventListener("beforeprint", () => timeline.drawNow());
  pictures.push(() => {
    timeline.draw();
    fillTimelineLegend(names, model, timeline);
  });
  return timeline;
}

// A click on a name leaves only that coloured.
function fillTimelineLegend(names, model, timeline) {
  names.replaceChildren();
  const known = new Set(data.kernels.kernels.slice(0, KERNEL_COLORS.length).map((kernel) => kernel.name));
  const kinds = new Set(model.things.map((thing) => thing.kind));
  const entries = [...[...known].map((name) => ({ name, label: name, shade: color(name) })),
    ...(data.kernels.num_kernels > known.size ? [{ label: "other kernels", shade: OTHER_KERNEL }] : []),
    ...["collective", "copy", "fill", "launch", "python", "dispatch", "allocate", "read", "wait"].filter((kind) => kinds.has(kind)).map((kind) => ({ label: SAID[kind], shade: kindColor(kind) }))];
  names.append(...entries.map(({ name, label, shade }) => {
    if (!name) return el("li", {}, swatch(shade), label);
    const chip = el("button", { type: "button", "aria-pressed": String(timeline.only === name), onclick: () => {
      timeline.only = timeline.only === name ? null : name;
      for (const button of names.querySelectorAll("button")) button.setAttribute("aria-pressed", String(button === chip && timeline.only !== null));
      timeline.draw();
    } }, swatch(shade), label);
    return el("li", {}, chip);
  }));
}

function showRanks() {
  section("ranks", "Time by rank",
    el("p", { class: "quiet" }, "What each rank's time went to; every bar is the length of the run, or of the part of it that is chosen."),
    picture(el("div", { class: "chart", id: "rank-bars" }), (width) => el("div", {},
      legend(timesOfPart().resources.map((name) => ({ label: name, color: resourceColor(name) }))),
      rankBars(timesOfPart(), part.time_ps, width))));
}

let chosenKernel = null;
let roofsOf = "kernels";

function chooseKernel(name) {
  const kernel = data.kernels.kernels.find((row) => row.name === name);
  if (!kernel) return;
  chosenKernel = kernel;
  byId("lines").replaceChildren(
    el("h3", {}, `Lines of ${kernel.name}`),
    el("p", { class: "quiet" }, `${plural(kernel.launches, "launch")}, ${formatPs(kernel.time_ns * 1000)} in all of the run. Times of lines add up to that; the rate is that of all ${data.kernels.roofs.num_pes} PEs while they are busy with the line.`),
    ...linesOf(kernel, data.kernels.roofs));
  byId("lines").dataset.kernel = kernel.name;
  if (data.kernels.kernels.length > 1) byId("lines").append(beside(kernel));
  markChosen();
  drawRoofline();
}

// A choice of another kernel, which is shown beside the chosen one.
function beside(kernel) {
  const others = data.kernels.kernels.filter((row) => row !== kernel);
  const box = el("div", { id: "beside", class: "wide scroll" });
  const choice = el("select", { "aria-label": "Kernel beside the chosen one", onchange: () => {
    const other = others[Number(choice.value)];
    box.replaceChildren(...(other ? [sideBySide(kernel, other)] : []));
  } }, el("option", { value: "-1" }, "none"), others.map((row, at) => el("option", { value: String(at) }, row.name)));
  return el("div", {}, el("p", { class: "tools" }, el("label", {}, "Beside it: ", choice)), box);
}

function showKernels() {
  const { kernels, roofs } = data.kernels;
  if (!kernels.length) return;
  const choices = ["kernels", "lines"].map((kind) => el("button", { type: "button", "data-roofs": kind, onclick: () => {
    roofsOf = kind;
    drawRoofline();
  } }, kind === "kernels" ? "All kernels" : "Lines of the chosen one"));
  section("kernels", "Kernels",
    el("p", { class: "quiet" }, "Of the launches that begin in the part of the run that is chosen above. A click on a kernel shows its lines."),
    el("div", { id: "kernels-table" }));
  byId("kernels").append(el("div", { id: "lines" }));
  fillKernels();
  const without = kernels.filter((row) => !row.flops).length;
  section("roofline", "Roofline",
    el("p", { class: "quiet" }, `What kernels reach of one device's peaks; areas are their times. Lines are the roofs of matrix products by element type and of HBM (${formatAmount(roofs.hbm_bytes_per_ns * 1e9, "B/s")})${roofs.cache_bytes_per_ns ? `, dashed that of the cache (${formatAmount(roofs.cache_bytes_per_ns * 1e9, "B/s")})` : ""}. ${without ? `${plural(without, "kernel")} without matrix products ${without === 1 ? "is" : "are"} not in it: see the bandwidth in the table.` : ""}`),
    el("div", { class: "tools" }, choices),
    el("div", { class: "chart", id: "roofs" }));
  picture(byId("roofs"), rooflineOf);
  // A kernel of the program rather than of a library, which has no lines.
  chooseKernel((kernels.find((row) => row.files.some((file) => file.has_source)) ?? kernels[0]).name);
}

function fillKernels() {
  const kernels = kernelsOfPart();
  const box = byId("kernels-table");
  if (!box) return;
  box.replaceChildren(...(kernels.length ? [
    el("div", { class: "wide scroll" }, kernelsTable(kernels, color, (row) => chooseKernel(row.name))),
    moreThan(kernels.length, part.num_kernels ?? data.kernels.num_kernels)] : [el("p", {}, "No kernel begins in it.")]).filter(Boolean));
  markChosen();
}

function showModules() {
  if (!data.parts.some((choice) => choice.modules.length)) return;
  section("modules", "Modules",
    el("p", { class: "quiet" }, "What each module of the program caused, forward and backward, with the modules in it. A number in brackets says of how many equal ones a row is the sum."),
    el("div", { id: "modules-table", class: "wide scroll" }));
  fillModules();
}

function fillModules() {
  const time = (name) => ({ of: (row) => row[name], show: (row) => row[name] ? formatPs(row[name] * 1000) : "" });
  const whole = Math.max(1, ...part.modules.map((row) => row.critical_path_ns));
  byId("modules-table")?.replaceChildren(part.modules.length ? table([
    { title: "module", text: true, of: (row) => part.modules.indexOf(row), show: (row) => el("span", { title: row.module, style: { "padding-left": `${row.depth}em` } }, row.name) },
    { title: "on path", of: (row) => row.critical_path_ns, show: (row) => el("span", {}, formatPs(row.critical_path_ns * 1000), meter(row.critical_path_ns / whole)) },
    { title: "host", ...time("host_ns") },
    { title: "device", ...time("device_ns") },
    { title: "launches", minor: true, of: (row) => row.launches, show: (row) => row.launches || "" },
    { title: "allocated", minor: true, of: (row) => row.allocated_bytes, show: (row) => row.allocated_bytes ? formatSize(row.allocated_bytes) : "" },
  ], part.modules) : el("p", {}, "Nothing begins in it."));
}

function markChosen() {
  for (const row of byId("kernels").querySelectorAll("tr[data-kernel]")) row.setAttribute("aria-selected", String(row.dataset.kernel === chosenKernel?.name));
}

function rooflineOf(width) {
  const { roofs } = data.kernels;
  for (const button of document.querySelectorAll("[data-roofs]")) button.setAttribute("aria-pressed", String(button.dataset.roofs === roofsOf));
  const points = roofsOf === "kernels" ? rooflinePoints(kernelsOfPart()) : linePoints(chosenKernel, roofs);
  if (!points.length) return el("p", {}, roofsOf === "kernels" ? "No kernel of this part of the run multiplies matrices." : `No line of ${chosenKernel.name} is known to multiply matrices: the table above has the rates of its lines.`);
  const shade = roofsOf === "kernels" ? color : () => color(chosenKernel.name);
  return roofline(points, roofs, { width: Math.min(width, 1000), color: shade, selected: chosenKernel?.name, choose: roofsOf === "kernels" ? chooseKernel : null });
}

function drawRoofline() {
  const box = byId("roofs");
  if (box?.dataset.drawn) box.replaceChildren(rooflineOf(box.clientWidth));
}

function showCommunication() {
  const { collectives } = data;
  // Of a folded run it is not known.
  const communication = data.communication ?? { total_bytes: 0, by_switch_bytes: 0, ranks_per_cell: 1 };
  if (!communication.total_bytes && !collectives.length) return;
  const moved = communication.total_bytes
    ? `Ranks send each other ${formatBytes(communication.total_bytes)} in all`
    : data.communication ? "No rank sends bytes to another one" : "Of a folded run it is not known who sends to whom";
  const bySwitch = communication.by_switch_bytes ? `; switches that add or copy move ${formatBytes(communication.by_switch_bytes)} besides` : "";
  const perCell = communication.ranks_per_cell;
  section("communication", "Communication",
    el("p", { class: "quiet" }, `${moved}${bySwitch}.${perCell > 1 ? ` A cell is ${perCell} ranks.` : ""}`),
    el("div", { class: "pair" },
      communication.total_bytes ? picture(el("div", { class: "chart", id: "matrix" }), (width) => communicationMatrix(communication, width)) : el("div"),
      collectives.length ? el("div", { class: "wide scroll" }, el("h3", {}, "Collectives"), table([
        { title: "collective", text: true, of: (row) => row.op },
        { minor: true, title: "algorithm", text: true, of: (row) => row.algorithm },
        { minor: true, title: "count", of: (row) => row.count, show: (row) => formatCount(row.count) },
        { title: "bytes", of: (row) => row.bytes, show: (row) => formatBytes(row.bytes) },
        { title: "time", of: (row) => row.time_ns, show: (row) => formatPs(row.time_ns * 1000) },
        { title: "algbw", of: (row) => row.bytes / row.time_ns, show: (row) => formatAmount((row.bytes / row.time_ns) * 1e9, "B/s") },
      ], collectives)) : null));
}

async function showMemory() {
  const { memory, about } = data;
  if (!memory) return;
  if (!memory.is_recorded) {
    section("memory", "Memory", el("p", { class: "quiet" }, "This run was saved without what it allocates; save it again to see that here."));
    return;
  }
  const { peak, owners } = memory;
  const named = (owner) => `rank ${owner.rank}${owners.some((other) => other !== owner && other.rank === owner.rank) ? `, device ${owner.device}` : ""}`;
  const choice = el("select", { "aria-label": "Rank", onchange: () => redraw() }, owners.map((owner, place) => el("option", { value: String(place) }, `${named(owner)}: ${formatSize(owner.peak_bytes)}`)));
  const box = el("div", { class: "chart", id: "memory-curve" });
  const more = memory.num_owners > owners.length ? el("p", { class: "quiet" }, `Of ${memory.num_owners}, the ${owners.length} with the highest peaks.`) : null;
  section("memory", "Memory",
    el("p", { class: "quiet" }, "Bytes in use on a device, in blocks of its allocator, at the highest moment of each 300th of the run."),
    el("div", { class: "tools" }, choice), more, box,
    el("h3", {}, `At the peak of rank ${peak.rank}: ${formatSize(peak.bytes)} at ${formatPs(peak.time_ns * 1000)}`),
    el("div", { class: "pair" },
      partsTable("phase", peak.phases, peak.bytes), partsTable("module", peak.modules, peak.bytes),
      partsTable("allocated at", peak.lines, peak.bytes, shortFile)),
    el("div", { class: "wide scroll" }, table([
      { title: "tensor", text: true, of: (row) => row.name },
      { title: "shape", of: (row) => row.shape.join("×") },
      { minor: true, title: "type", text: true, of: (row) => row.dtype },
      { minor: true, title: "phase", text: true, of: (row) => row.phase, show: (row) => el("span", {}, swatch(phaseColor(row.phase)), row.phase) },
      { minor: true, title: "module", text: true, of: (row) => row.module },
      { minor: true, title: "allocated at", text: true, of: (row) => placeOf(row.file, row.line), show: (row) => el("span", { class: "place", title: row.file }, placeOf(row.file, row.line)) },
      { title: "bytes", of: (row) => row.bytes, show: (row) => formatSize(row.bytes) },
    ], peak.tensors)), moreThan(peak.tensors.length, peak.num_tensors, "smaller"));
  const values = (await unpack(memory.in_use)).bytes;
  const draw = (width) => memoryCurve(memory, values, Number(choice.value), about.time_ps, width);
  const redraw = () => box.dataset.drawn && box.replaceChildren(draw(box.clientWidth));
  picture(box, draw);
}

async function showEnergy() {
  const { energy, about } = data;
  if (!energy) return;
  const parts = el("div", { id: "energy-parts", "data-drawn": "true" }, energyParts(energy));
  pictures.push(() => parts.replaceChildren(energyParts(energy)));
  const curve = el("div", { class: "chart", id: "power-curve" });
  section("energy", "Energy",
    el("p", {}, `${plural(about.ranks, "device")} take${about.ranks === 1 ? "s" : ""} `, el("b", {}, formatJoules(energy.energy_j)), `, ${energy.average_w.toFixed(0)} W on average each, ${energy.peak_w.toFixed(0)} W at most. Hosts, switches and cooling are not in it.`),
    parts,
    el("h3", {}, "Power over time"),
    el("p", { class: "quiet" }, `The mean of each 300th of the run${about.ranks > 1 ? "; the band is from the device that draws least to the one that draws most" : ""}.`),
    curve,
    el("div", { class: "wide scroll" }, table([
      { title: "for what", text: true, of: (row) => row.name, show: (row) => kernelLink(row.name) },
      { minor: true, title: "is a", text: true, of: (row) => SAID[row.kind] ?? row.kind },
      { minor: true, title: "times", of: (row) => row.count, show: (row) => (row.count ? formatCount(row.count) : "") },
      { title: "energy", of: (row) => row.energy_j, show: (row) => formatJoules(row.energy_j) },
      { title: "share", of: (row) => row.energy_j, show: (row) => formatShare(row.energy_j, energy.energy_j) },
      { minor: true, title: "a device draws", of: (row) => row.average_w, show: (row) => `${row.average_w.toFixed(0)} W` },
    ], energy.uses)), moreThan(energy.uses.length, energy.num_uses, "smaller"));
  const milliwatts = await unpack(energy.milliwatts);
  picture(curve, (width) => powerCurve(energy, milliwatts, about.time_ps, about.ranks, width));
}

function showMachine() {
  const { machine, about } = data;
  section("machine", "Machine",
    el("p", {}, el("b", {}, machine.name), `: ${machine.description || "without a description"}. ${plural(about.num_sips, "SIP")}, topology ${about.topology}.`),
    el("div", { class: "keys" }, machine.keys.map(([key, value]) => el("div", {}, el("span", {}, key), el("span", {}, value)))));
}

// Which part of the run is shown: a step, a range, all of it.
function showParts(timeline) {
  const zoom = () => (part.to_ps === undefined ? timeline.show(0, Infinity) : timeline.show(part.from_ps, part.to_ps - part.from_ps));
  if (data.parts.length < 2) return;
  const choice = el("select", { id: "parts", "aria-label": "Part of the run", onchange: () => {
    part = data.parts[Number(choice.value)];
    showTop();
    showSpent();
    fillKernels();
    fillModules();
    const bars = byId("rank-bars");
    if (bars.dataset.drawn) pictures.forEach((redraw) => redraw());
    zoom();
  } }, data.parts.map((choice, at) => el("option", { value: String(at), selected: at === data.part }, `${choice.name === "all" ? "the whole run" : choice.name}: ${formatPs(choice.time_ps)}`)));
  byId("choice").append(el("label", {}, "Show ", choice));
  zoom();
}

function showNavigation() {
  byId("nav").append(...sections.map(({ id, title }) => el("a", { href: `#${id}` }, title)));
}

startTheme(() => {
  showTop();
  pictures.forEach((redraw) => redraw());
});
showTop();
showChanges();
showFindings();
showServing();
const timelineShown = showTimeline();
showRanks();
showModules();
showKernels();
showCommunication();
const memoryShown = showMemory();
const energyShown = showEnergy();
showMachine();
showNavigation();
// For tests and for those who look at a page with their browser's console.
Promise.all([timelineShown, memoryShown, energyShown]).then(([timeline]) => {
  showParts(timeline);
  window.kernbench = { data, timeline };
  document.documentElement.dataset.ready = "true";
});
