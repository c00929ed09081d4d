// Tables that can be sorted by a click on a head.

// columns: {title, text: whether it is text, of: row -> what to sort by, show: row -> node or text,
// minor: whether narrow windows leave it out}. Numbers are never cut: texts share what they leave,
// the first one as much as two others, and a hint has what is cut of them.
function table(columns, rows, options = {}) {
  const body = el("tbody");
  const texts = columns.filter((column) => column.text);
  const share = 100 / (texts.length + (columns[0].text ? 1 : 0));
  let sorted = rows;
  let by = null;
  const fill = () => {
    body.replaceChildren(
      ...sorted.map((row) => {
        const cells = columns.map((column) => {
          const cell = el("td", { class: classOf(column) }, column.show ? column.show(row) : String(column.of(row)));
          if (column.text && !cell.querySelector("[title]")) cell.title = cell.textContent;
          return cell;
        });
        const line = el("tr", options.attributes?.(row) ?? {}, cells);
        if (options.choose) {
          line.classList.add("choice");
          line.tabIndex = 0;
          line.addEventListener("click", () => options.choose(row));
          line.addEventListener("keydown", (event) => event.key === "Enter" && options.choose(row));
        }
        return line;
      }),
    );
  };
  const sort = (column) => {
    const sign = by?.column === column && by.sign < 0 === !column.text ? -by.sign : column.text ? 1 : -1;
    by = { column, sign };
    sorted = [...rows].sort((a, b) => {
      const [left, right] = [column.of(a), column.of(b)];
      return sign * (left < right ? -1 : left > right ? 1 : 0);
    });
    fill();
  };
  fill();
  const heads = columns.map((column) =>
    el("th", { class: classOf(column), scope: "col", style: column.text ? { width: `${(column === columns[0] ? 2 : 1) * share}%` } : {} },
      column.of ? el("button", { type: "button", title: "Sort", onclick: () => sort(column) }, column.title) : column.title),
  );
  return el("table", {}, el("thead", {}, el("tr", {}, heads)), body);
}

const classOf = (column) => `${column.text ? "text" : "number"}${column.minor ? " minor" : ""}`;

function meter(share, color) {
  const width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return el("span", { class: "meter", "aria-hidden": "true" }, el("i", { style: { width, background: color ?? "" } }));
}

function swatch(color) {
  return el("span", { class: "swatch", style: { background: color } });
}

function legend(entries) {
  return el("ul", { class: "legend" },
    entries.map(({ label, color, value }) => el("li", {}, swatch(color), label, value ? el("span", { class: "quiet" }, ` ${value}`) : null)));
}
