// Draws the charts and fills the tables from the numbers in #data. Rows are sorted, filtered and downloaded here.
const data = JSON.parse(document.getElementById("data").textContent);
const UNITS = [
  [/_ns$/, "ns", [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]]],
  [/(^|_)bytes$/, "bytes", [[1e9, "GB"], [1e6, "MB"], [1e3, "kB"], [1, "B"]]],
  [/_ratio$/, "", null],
  [/_gbps$/, "GB/s", []],
  [/_tflops$/, "TFLOP/s", []],
  [/^(most_|model_)?flops$/, "FLOP", [[1e12, "TFLOP"], [1e9, "GFLOP"], [1e6, "MFLOP"], [1, "FLOP"]]],
];
const IDENTITIES = new Set(["rank", "device", "stream", "step", "group", "control_step", "test_step", "place", "unit"]);
const unitOf = (name) => UNITS.find(([pattern]) => pattern.test(name));
const grouped = (value) => value.toLocaleString("en-US", { maximumSignificantDigits: Math.abs(value) >= 1000 ? 21 : 4 });

const IN_ROWS_UNIT = new Set(["control", "test", "before", "after", "delta", "low", "high", "bootstrap_low", "bootstrap_high", "min", "mean", "max", "std"]);
const SUFFIXES = { ns: "_ns", bytes: "_bytes", ratio: "_ratio" };

function shown(name, value) {
  if (value === null || value === undefined) return "–";
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (typeof value !== "number" || IDENTITIES.has(name)) return String(value);
  if (/_ratio$/.test(name)) return `${(100 * value).toFixed(1).replace(/^-0\.0$/, "0.0")} ${/^(delta|low|high)_/.test(name) ? "points" : "%"}`;
  const unit = unitOf(name);
  if (!unit) return grouped(Number.isInteger(value) ? value : Number(value.toPrecision(4)));
  const [scale, word] = (unit[2] || []).find(([scale]) => Math.abs(value) >= scale) || [1, (unit[2] || []).length ? unit[2].at(-1)[1] : unit[1]];
  return `${grouped(Number((value / scale).toPrecision(4)))} ${word}`;
}

const sign = (name, value) => (/^(delta|change)(_|$)/.test(name) && value > 0 ? "+" : "");

function download(name, table) {
  const quoted = (value) => (/[",\n]/.test(value) ? `"${value.replaceAll('"', '""')}"` : value);
  const lines = [table.columns, ...table.rows].map((row) => row.map((cell) => quoted(cell === null ? "" : String(cell))).join(","));
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
  link.download = `${name}.csv`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function element(tag, text, attributes = {}) {
  const made = document.createElement(tag);
  if (text !== null) made.textContent = text;
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  return made;
}

const narrow = window.matchMedia("(max-width: 45rem)");
// The column that tells rows apart, the first of those that do it about best, comes first and stays in sight; what all
// rows have in common is said once
function arranged(table, numeric) {
  const different = table.columns.map((_, at) => new Set(table.rows.map((row) => row[at])).size);
  const all = [...different.keys()].filter((at) => table.columns[at] !== "unit");  // each cell says its own
  const shared = table.rows.length > 1 ? all.filter((at) => different[at] === 1) : [];
  const rest = all.filter((at) => !shared.includes(at));
  const names = rest.filter((at) => !numeric[at] && !/shapes$|path$|evidence|reason/.test(table.columns[at]));
  const key = names.find((at) => 2 * different[at] >= Math.max(...names.map((each) => different[each])));
  const others = rest.filter((at) => at !== key);
  const late = (at) => !numeric[at] && !IDENTITIES.has(table.columns[at]);
  if (narrow.matches) others.sort((a, b) => late(a) - late(b));  // on a phone figures come before texts
  return [key === undefined ? rest : [key, ...others], shared];
}

function fill(details, name, table) {
  const numeric = table.columns.map((column, at) => !IDENTITIES.has(column) && table.rows.some((row) => typeof row[at] === "number"));
  const at_unit = table.columns.indexOf("unit");
  const cell_of = (row, at) => sign(table.columns[at], row[at]) + shown(IN_ROWS_UNIT.has(table.columns[at]) && at_unit >= 0 ? table.columns[at] + (SUFFIXES[row[at_unit]] ?? "") : table.columns[at], row[at]);
  const title = details.querySelector("summary").firstChild.textContent;
  const search = element("input", null, { type: "search", placeholder: "filter rows", "aria-label": `filter rows of ${title}` });
  const csv = element("button", "download CSV", { type: "button" });
  const tools = element("div", null, { class: "tools" });
  csv.onclick = () => download(name, table);
  if (table.rows.length === 1) {
    const list = element("dl", null, { class: "one" });
    table.columns.forEach((column, at) => {
      const pair = element("div", null, { title: table.about[at] ?? "" });
      pair.append(element("dt", table.headings[at]), element("dd", cell_of(table.rows[0], at)));
      list.append(pair);
    });
    tools.append(csv);
    details.append(list, tools);
    return;
  }
  const [columns, shared] = arranged(table, numeric);
  const hint = element("span", null, { class: "small", "aria-live": "polite" });
  tools.append(search, csv, hint);
  const same = shared.map((at) => `${table.headings[at]} ${cell_of(table.rows[0], at)}`).join(" · ");
  const about = element("p", same && `In all rows: ${same}`, { class: "small" });
  const head = element("tr", null);
  const body = element("tbody", null);
  let order = null;

  const draw = () => {
    const words = search.value.toLowerCase();
    let rows = table.rows.filter((row) => !words || row.some((cell) => String(cell).toLowerCase().includes(words)));
    if (order) {
      const [at, sign] = order;
      rows = [...rows].sort((a, b) => (a[at] === null) - (b[at] === null) || sign * (a[at] < b[at] ? -1 : a[at] > b[at] ? 1 : 0));
    }
    body.replaceChildren(...rows.map((row) => {
      const line = element("tr", null);
      columns.forEach((at) => {
        const cell = row[at];
        const long = typeof cell === "string" && cell.length > 40;
        const made = element("td", null, { class: numeric[at] ? "number" : long ? "text" : "" });
        made.append(element("span", cell_of(row, at)));
        if (numeric[at] && cell !== null) made.title = `${cell.toLocaleString("en-US", { maximumFractionDigits: 9 })} ${unitOf(table.columns[at])?.[1] ?? ""}`;
        line.append(made);
      });
      return line;
    }));
  };
  columns.forEach((at) => {
    const column = table.columns[at];
    const cell = element("th", null, { scope: "col", class: numeric[at] ? "number" : "", "aria-sort": "none" });
    const button = element("button", table.headings[at], { type: "button", title: table.about[at] ?? `sort by ${column}` });
    button.onclick = () => {
      order = [at, order && order[0] === at ? -order[1] : numeric[at] ? -1 : 1];
      head.querySelectorAll("th").forEach((other) => other.setAttribute("aria-sort", "none"));
      cell.setAttribute("aria-sort", order[1] > 0 ? "ascending" : "descending");
      if (table.about[at]) about.textContent = `${table.headings[at]}: ${table.about[at]}`;
      draw();
    };
    cell.append(button);
    head.append(cell);
  });
  search.oninput = draw;
  const made = element("table", null);
  const caption = element("thead", null);
  caption.append(head);
  made.append(caption, body);
  const scroll = element("div", null, { class: "scroll", tabindex: "0", role: "region", "aria-label": `table: ${title}` });
  scroll.append(made);
  details.append(tools, about, scroll);
  draw();
  const counted = () => {
    const end = scroll.getBoundingClientRect().right + 8;
    const hidden = [...head.children].filter((cell) => cell.getBoundingClientRect().right > end).length;
    hint.textContent = hidden ? `${hidden} of ${columns.length} columns to the right →` : "";
  };
  scroll.addEventListener("scroll", counted, { passive: true });
  new ResizeObserver(counted).observe(scroll);
}

for (const [name, table] of Object.entries(data.tables)) {
  const details = document.getElementById(`table-${name}`);
  const once = () => { if (details.open && !details.querySelector("table")) fill(details, name, table); };
  details.addEventListener("toggle", once);
  once();
}

const dark = window.matchMedia("(prefers-color-scheme: dark)");
async function drawCharts(forPrint) {
  const light = forPrint || !dark.matches;
  const [text, line] = light ? ["#1b1f24", "#d0d7de"] : ["#e6edf3", "#30363d"];
  const axis = { labelColor: text, titleColor: text, gridColor: line, domainColor: line, tickColor: line, labelLimit: Math.min(320, window.innerWidth / 3) };
  const config = {
    background: null, axis, view: { stroke: null }, text: { color: text, fill: text },
    legend: { labelColor: text, titleColor: text }, title: { color: text }, font: "system-ui, sans-serif",
  };
  for (const [name, spec] of Object.entries(data.charts)) {
    const place = document.getElementById(`chart-${name}`);
    try {
      await window.vegaEmbed(place, spec, {
        renderer: "svg", config, theme: light ? undefined : "dark",
        actions: { export: true, source: false, compiled: false, editor: false }, downloadFileName: name,
      });
    } catch (error) {
      place.textContent = `This chart cannot be drawn: ${error}`;
      console.error(error);
    }
  }
  document.body.dataset.charts = "drawn";
}
dark.addEventListener("change", () => drawCharts(false));
window.addEventListener("beforeprint", () => drawCharts(true));
window.addEventListener("afterprint", () => drawCharts(false));
await drawCharts(false);
