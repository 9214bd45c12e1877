// What the page as a whole does: data, theme, copying, navigation, printing.
const data = JSON.parse(document.getElementById("data").textContent);
const charts = [];
const $ = (id) => document.getElementById(id);
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const partColour = (part) => css(part < 0 ? "--op" : `--part-${part}`);
const thousands = (text) => text.replace(/\B(?=(\d{3})+(?!\d))/g, "\u202f");

function ms(value, like) {
  if (value === null || value === undefined) return "not measured";
  const size = Math.abs(like === undefined ? value : like);
  const decimals = size >= 1000 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  const [whole, rest] = value.toFixed(decimals).split(".");
  return thousands(whole) + (rest ? `.${rest}` : "");
}

function percent(share) {
  const value = share * 100;
  return Math.abs(value) < 10 ? `${value.toFixed(1)} %` : `${value.toFixed(0)} %`;
}

const UNITS = ["B", "KiB", "MiB", "GiB", "TiB"];

function bytes(value) {
  let unit = 0;
  while (Math.abs(value) >= 1024 && unit < UNITS.length - 1) { value /= 1024; unit += 1; }
  return `${unit === 0 || value >= 100 ? value.toFixed(0) : value.toPrecision(3)} ${UNITS[unit]}`;
}

function announce(text) { $("announce").textContent = text; }

// Text from a script or a trace goes into the page as text only, never as markup.
function element(tag, text, className) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (className) made.className = className;
  return made;
}

function tip(title, lines) {
  const box = element("div", undefined, "tip");
  box.append(element("b", title));
  for (const line of lines) if (line) box.append(element("div", line));
  return box;
}

function tooltip(extra) {
  return {
    confine: true, appendTo: document.body, backgroundColor: css("--surface"), borderColor: css("--line"),
    textStyle: { color: css("--text") }, ...extra,
  };
}

// A chart is drawn again from its data whenever theme or width change.
function chart(box, options, settings) {
  if (!box) return null;
  const made = echarts.init(box, null, { renderer: "svg", ...settings });
  const entry = { chart: made, draw: () => made.setOption(options(), { notMerge: true }) };
  entry.draw();
  charts.push(entry);
  new ResizeObserver(() => made.resize()).observe(box);
  return entry;
}

function redraw() { for (const entry of charts) entry.draw(); }

function themes() {
  const button = $("theme");
  const order = ["auto", "light", "dark"];
  let chosen = "auto";
  const apply = () => {
    if (chosen === "auto") document.documentElement.removeAttribute("data-theme");
    else document.documentElement.dataset.theme = chosen;
    button.textContent = `Theme: ${chosen}`;
    for (const entry of charts) entry.chart.resize();
    redraw();
  };
  button.hidden = false;
  button.addEventListener("click", () => { chosen = order[(order.indexOf(chosen) + 1) % 3]; apply(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before = null;
  addEventListener("beforeprint", () => {
    // What is folded stays folded, as the reader left it; only how things were measured is told.
    before = [chosen, [...document.querySelectorAll("details.how:not([open])")]];
    chosen = "light";
    document.documentElement.classList.add("printing");
    for (const closed of before[1]) closed.open = true;
    apply();
  });
  addEventListener("afterprint", () => {
    if (!before) return;
    chosen = before[0];
    document.documentElement.classList.remove("printing");
    for (const opened of before[1]) opened.open = false;
    before = null;
    apply();
  });
}

function copying() {
  for (const button of document.querySelectorAll(".copy")) {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const block = $(button.dataset.copy);
      let done = true;
      try {
        await navigator.clipboard.writeText(block.textContent);
      } catch {
        const range = document.createRange();
        range.selectNodeContents(block);
        getSelection().removeAllRanges();
        getSelection().addRange(range);
        done = document.execCommand("copy");
      }
      button.textContent = done ? "Copied" : "Press Ctrl+C";
      announce(button.textContent);
      setTimeout(() => { button.textContent = "Copy"; }, 2000);
    });
  }
}

function navigation() {
  const links = new Map([...document.querySelectorAll(".sections a")].map((a) => [a.hash.slice(1), a]));
  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (!entry.isIntersecting) continue;
      for (const link of links.values()) link.removeAttribute("aria-current");
      links.get(entry.target.id).setAttribute("aria-current", "true");
    }
  }, { rootMargin: "-20% 0px -70% 0px" });
  for (const id of links.keys()) seen.observe($(id));
}

themes();
copying();
navigation();
