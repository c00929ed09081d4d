// Elements and numbers. Texts of programs only ever become text nodes.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (name === "style") Object.assign(element.style, value);
    else if (value !== undefined && value !== null && value !== false) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

function threeDigits(value) {
  const size = Math.abs(value);
  return value.toFixed(size < 9.995 ? 2 : size < 99.95 ? 1 : 0);
}

const TIME_UNITS = [[1e12, "s"], [1e9, "ms"], [1e6, "µs"], [1e3, "ns"], [1, "ps"]];
const DECIMAL = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];

function formatPs(ps) {
  if (!ps) return "0";
  for (const [size, unit] of TIME_UNITS) {
    if (Math.abs(ps) >= 0.9995 * size) return `${threeDigits(ps / size)} ${unit}`;
  }
  return `${ps.toFixed(0)} ps`;
}

// A moment, with as many digits as tell neighbours apart whose distance is given.
function formatMoment(ps, stepPs) {
  const [size, unit] = TIME_UNITS.find(([unitPs]) => Math.max(Math.abs(ps), stepPs) >= unitPs) ?? [1, "ps"];
  const digits = Math.max(0, Math.ceil(-Math.log10(stepPs / size) - 1e-9));
  return `${(ps / size).toFixed(Math.min(digits, 12))} ${unit}`;
}

function formatAmount(amount, unit) {
  for (const [size, prefix] of DECIMAL) {
    if (amount >= 0.9995 * size) return `${threeDigits(amount / size)} ${prefix}${unit}`;
  }
  return `${amount >= 10 || Number.isInteger(amount) ? amount.toFixed(0) : threeDigits(amount)} ${unit}`;
}

const formatBytes = (bytes) => formatAmount(bytes, "B");
const formatCount = (count) => count.toLocaleString("en");

function formatShare(part, whole) {
  if (!whole) return "–";
  const percent = (100 * part) / whole;
  return `${percent > 0 && percent < 9.95 ? percent.toFixed(1) : percent.toFixed(0)} %`;
}

function shortFile(file) {
  return file.slice(file.lastIndexOf("/") + 1);
}

function placeOf(file, line) {
  return line ? `${shortFile(file)}:${line}` : "";
}

const plural = (count, noun) => `${formatCount(count)} ${noun}${count === 1 ? "" : noun.endsWith("h") ? "es" : "s"}`;

// One hint for all pictures.
const tip = {
  show(event, text) {
    const box = byId("tip");
    box.textContent = text;
    box.hidden = false;
    const { width, height } = box.getBoundingClientRect();
    const left = event.clientX + 14 + width > innerWidth ? event.clientX - 14 - width : event.clientX + 14;
    const top = event.clientY + 14 + height > innerHeight ? event.clientY - 10 - height : event.clientY + 14;
    box.style.left = `${Math.max(4, left)}px`;
    box.style.top = `${Math.max(4, top)}px`;
  },
  hide() {
    byId("tip").hidden = true;
  },
};
