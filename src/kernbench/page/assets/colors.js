// Colours that people with any common colour vision tell apart (Okabe and Ito), one family per
// sort of thing: engines blue, memory green, communication orange, the host grey.

const RESOURCE_COLORS = {
  GEMM: "#0072b2", math: "#56b4e9",
  HBM: "#009e73", "shared HBM": "#00664b", "shared HBM, power": "#003f66", cache: "#66c7a8", port: "#a3dcc8", cubes: "#3d8f76",
  latency: "#b79bd3", "front end": "#7d5fa6", unknown: "#8f7f9f",
  links: "#e69f00", "other ranks": "#d55e00", "in-kernel wait": "#f3cf7a",
  copy: "#a9744f",
  "host launch": "#6b7280", "host operations": "#848b98", "host Python": "#4b5563",
  allocator: "#9aa1ad", "host read": "#b0b6bf", "host wait": "#c4c9d0", idle: "#d5d9de",
  "after its end": "#e4e7ea",
};
// Kernels have colours that no resource has (of Tol's muted scheme); so one colour is one thing.
const KERNEL_COLORS = ["#5b4bb5", "#cc6677", "#999933", "#aa4499", "#88ccee", "#882255", "#ddcc77", "#44aa99"];
const OTHER_KERNEL = "#7f93a8";
const KIND_COLORS = {
  collective: "#e69f00", copy: "#a9744f", fill: "#c9a182",
  launch: "#6b7280", capture: "#6b7280", dispatch: "#848b98", python: "#4b5563",
  allocate: "#9aa1ad", read: "#b0b6bf", wait: "#c9cdd3", host: "#d5d9de",
};

// Where nothing happens, the picture keeps to its background.
const IN_THE_DARK = {
  "#882255": "#b8407a", "#5b4bb5": "#8477d9",
  "#b0b6bf": "#5a636e", "#c4c9d0": "#434b55", "#c9cdd3": "#434b55", "#d5d9de": "#333a43", "#e4e7ea": "#262c34",
};
const inTheme = (color) => (document.documentElement.dataset.theme === "dark" && IN_THE_DARK[color]) || color;
const resourceColor = (name) => inTheme(RESOURCE_COLORS[name] ?? "#8f7f9f");
const kindColor = (kind) => inTheme(KIND_COLORS[kind] ?? KIND_COLORS.host);

function textOn(color) {
  const [red, green, blue] = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16) / 255);
  return 0.3 * red + 0.59 * green + 0.11 * blue > 0.55 ? "#16191d" : "#ffffff";
}

// The kernels with the most time have colours of their own, the same in all pictures.
function kernelColors(kernels) {
  const colors = new Map();
  kernels.slice(0, KERNEL_COLORS.length).forEach((kernel, place) => colors.set(kernel.name, KERNEL_COLORS[place]));
  return (name) => inTheme(colors.get(name) ?? OTHER_KERNEL);
}

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  byId("theme").textContent = theme === "dark" ? "Light" : "Dark";
}

function startTheme(changed) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  setTheme(system.matches ? "dark" : "light");
  const set = (theme) => {
    setTheme(theme);
    changed();
  };
  system.addEventListener("change", () => set(system.matches ? "dark" : "light"));
  byId("theme").addEventListener("click", () => {
    set(document.documentElement.dataset.theme === "dark" ? "light" : "dark");
  });
}

const themed = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
