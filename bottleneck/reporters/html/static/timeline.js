// One step: lanes of blocks, zoomed by drag, wheel, buttons and keys; a cause leads to its blocks.
const ROW = 18;
const NEUTRAL = { phases: "--phase", calls: "--call", operators: "--op", stream: "--op", idle: "--op", work: "--op" };

function timelineRows(timeline) {
  const rows = [];
  timeline.lanes.forEach((lane, index) => {
    rows.push({ head: lane.name });
    const deepest = lane.spans.reduce((most, span) => Math.max(most, span[4]), 0);
    lane.first = rows.length;
    for (let depth = 0; depth <= deepest; depth += 1) rows.push({ lane: index, depth });
  });
  return rows;
}

function makeTimeline(timeline) {
  const box = $("timeline-chart");
  const rows = timelineRows(timeline);
  const length = timeline.length_us;
  const items = timeline.lanes.flatMap((lane, l) =>
    lane.spans.map((span) => ({
      value: [lane.first + span[4], span[0], span[0] + span[1]], lane: l, part: span[3],
      name: timeline.names[span[2]], count: span[5],
    })));
  let cause = null, block = -1, blocks = [];
  const height = rows.length * ROW + 62;
  box.style.height = `${height}px`;

  // A finger on the timeline scrolls the page past it; the slider moves it, two fingers zoom.
  const touch = matchMedia("(pointer: coarse)").matches;

  const lit = (item) => cause === null || cause.parts.includes(item.part);
  const colourOf = (item) => (item.part < 0 ? css(NEUTRAL[timeline.lanes[item.lane].kind]) : partColour(item.part));

  let sans = "", onSpan = "", colours = new Map();
  function draw(params, api) {
    const item = items[params.dataIndex];
    const from = api.coord([api.value(1), api.value(0)]);
    const to = api.coord([api.value(2), api.value(0)]);
    const area = params.coordSys;
    const x = Math.max(from[0], area.x);
    const width = Math.min(to[0], area.x + area.width) - x;
    if (width <= 0 && to[0] < area.x) return null;
    const key = item.part < 0 ? timeline.lanes[item.lane].kind : item.part;
    if (!colours.has(key)) colours.set(key, colourOf(item));
    const colour = colours.get(key);
    return {
      type: "rect", shape: { x, y: from[1] - ROW / 2 + 1.5, width: Math.max(width, 0.8), height: ROW - 3, r: width > 6 ? 2 : 0 },
      style: { fill: colour, opacity: lit(item) ? 1 : 0.25 },
      textConfig: { position: "insideLeft", distance: 4 },
      // Always there, empty where it does not fit: a text once given cannot be taken away again.
      textContent: {
        type: "text",
        style: {
          text: width > 34 ? item.name : "", width: width - 8, overflow: "truncate", ellipsis: "…", fontSize: 10.5,
          fontFamily: sans, fill: item.part < 0 ? onSpan : onColour(colour), opacity: lit(item) ? 1 : 0.5,
        },
      },
    };
  }

  const options = () => {
    // Read once per theme, not once per block.
    [sans, onSpan, colours] = [css("--sans"), css("--on-span"), new Map()];
    return chartOptions();
  };
  const chartOptions = () => ({
    animation: false,
    grid: { left: 10, right: 10, top: 22, bottom: 40 },
    tooltip: tooltip({ formatter: (p) => describe(items[p.dataIndex]) }),
    xAxis: {
      type: "value", min: 0, max: length, position: "top", axisLabel: { ...label(), formatter: (us) => `${+(us / 1e3).toPrecision(4)} ms`, hideOverlap: true, showMaxLabel: false },
      splitLine: { lineStyle: { color: css("--line") } }, axisLine: { show: false },
    },
    yAxis: {
      type: "category", inverse: true, data: rows.map((_, i) => i), axisTick: { show: false }, axisLine: { show: false },
      axisLabel: { inside: true, interval: 0, margin: 0, ...label(), fontWeight: 600, color: css("--text"), formatter: (_, i) => rows[i]?.head ?? "" },
      z: 5,
    },
    dataZoom: [
      { type: "inside", xAxisIndex: 0, filterMode: "weakFilter", zoomOnMouseWheel: "ctrl", moveOnMouseWheel: false, moveOnMouseMove: !touch, preventDefaultMouseMove: !touch, start: view.start, end: view.end },
      {
        type: "slider", xAxisIndex: 0, filterMode: "weakFilter", bottom: 8, height: 18, showDataShadow: false, brushSelect: false, labelFormatter: "",
        borderColor: css("--line"), fillerColor: css("--accent-soft"), backgroundColor: css("--sunken"), start: view.start, end: view.end,
        handleStyle: { color: css("--surface"), borderColor: css("--accent") }, moveHandleStyle: { color: css("--accent") },
      },
    ],
    series: [{ type: "custom", renderItem: draw, encode: { x: [1, 2], y: 0 }, data: items.map((item) => item.value), clip: true, progressive: 0 }],
  });
  const view = { start: 0, end: 100 };
  const made = chart(box, options, { renderer: "canvas" });
  made.chart.on("datazoom", () => {
    const zoom = made.chart.getOption().dataZoom[0];
    [view.start, view.end] = [zoom.start, zoom.end];
    box.dataset.start = view.start.toFixed(3);
    box.dataset.end = view.end.toFixed(3);
  });
  made.chart.on("click", (p) => { say(items[p.dataIndex]); });

  function facts(item) {
    const [, start, end] = item.value;
    return [
      `${ms((end - start) / 1e3)} ms from ${ms(start / 1e3, length / 1e3)} ms, ${percent((end - start) / length)} of this step`,
      item.part >= 0 ? data.parts[item.part] : "",
      item.count > 1 ? `${item.count} events drawn as one; named after the longest` : "",
      timeline.lanes[item.lane].name,
    ];
  }
  function describe(item) { return tip(item.name, facts(item)); }
  function say(item, before) { $("timeline-status").textContent = [before, item.name, ...facts(item)].filter(Boolean).join(" · "); }

  function zoom(start, end) {
    const span = Math.min(100, Math.max(end - start, 0.02));
    const from = Math.min(Math.max(0, start), 100 - span);
    made.chart.dispatchAction({ type: "dataZoom", dataZoomIndex: 0, start: from, end: from + span });
  }
  const actions = {
    in: () => { const w = (view.end - view.start) / 4; zoom(view.start + w, view.end - w); },
    out: () => { const w = (view.end - view.start) / 2; zoom(view.start - w, view.end + w); },
    left: () => { const w = (view.end - view.start) / 4; zoom(view.start - w, view.end - w); },
    right: () => { const w = (view.end - view.start) / 4; zoom(view.start + w, view.end + w); },
    all: () => zoom(0, 100),
    next: () => goTo(block + 1),
    previous: () => goTo(block - 1),
  };

  function goTo(index) {
    if (blocks.length === 0) return;
    block = (index + blocks.length) % blocks.length;
    const [, start, end] = blocks[block].value;
    const around = Math.max((end - start) * 0.6, length * 0.01);
    zoom(Math.max(0, ((start - around) / length) * 100), Math.min(100, ((end + around) / length) * 100));
    say(blocks[block], `${cause.name}, block ${block + 1} of ${blocks.length}`);
  }
  function choose(index, move) {
    cause = index === null ? null : data.causes[index];
    blocks = cause === null ? [] : items.filter((item) => lit(item) && cause.lanes.includes(item.lane)).sort((a, b) => a.value[1] - b.value[1]);
    for (const button of document.querySelectorAll("#timeline-causes button")) {
      button.setAttribute("aria-pressed", String(button.dataset.cause === (index === null ? "" : String(index))));
    }
    for (const button of document.querySelectorAll("[data-zoom='next'], [data-zoom='previous']")) button.disabled = blocks.length < 2;
    made.draw();
    if (blocks.length === 0) { $("timeline-status").textContent = cause ? `${cause.name} does not show in this step` : "\u00a0"; return; }
    if (move) {
      const longest = blocks.reduce((a, b) => (b.value[2] - b.value[1] > a.value[2] - a.value[1] ? b : a));
      goTo(blocks.indexOf(longest));
    }
  }

  const group = $("timeline-causes");
  const add = (text, index) => {
    const button = element("button", text);
    button.type = "button";
    button.dataset.cause = index === null ? "" : String(index);
    button.setAttribute("aria-pressed", String(index === null));
    button.addEventListener("click", () => { choose(index, index !== null); if (index === null) actions.all(); });
    group.append(button);
  };
  add("Everything", null);
  data.causes.forEach((each, index) => { if (each.lanes.length > 0) add(each.name, index); });
  for (const button of document.querySelectorAll("[data-zoom]")) button.addEventListener("click", () => actions[button.dataset.zoom]());
  for (const button of document.querySelectorAll(".show")) {
    button.hidden = false;
    button.addEventListener("click", () => {
      choose(Number(button.dataset.cause), true);
      $("timeline").scrollIntoView({ block: "start" });
      $("timeline-box").focus({ preventScroll: true });
    });
  }
  const keys = { "+": "in", "=": "in", "-": "out", ArrowLeft: "left", ArrowRight: "right", 0: "all", n: "next", p: "previous" };
  $("timeline-box").addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !keys[event.key]) return;
    event.preventDefault();
    actions[keys[event.key]]();
  });
  // ECharts takes every turn of the wheel over a chart that can zoom; without Ctrl it is the page's.
  $("timeline-box").addEventListener("wheel", (event) => { if (!event.ctrlKey) event.stopPropagation(); }, { capture: true, passive: true });
  $("timeline-tools").hidden = false;

  const used = new Map();
  for (const item of items) {
    if (item.part >= 0) used.set(item.part, (used.get(item.part) || 0) + item.value[2] - item.value[1]);
  }
  for (const part of [...used.keys()].sort((a, b) => a - b)) {
    const entry = element("li");
    const swatch = element("span", undefined, "swatch");
    swatch.style.setProperty("--c", `var(--part-${part})`);
    swatch.setAttribute("aria-hidden", "true");
    entry.append(swatch, data.parts[part]);
    $("timeline-legend").append(entry);
  }
}

if (data.timeline && $("timeline-chart")) makeTimeline(data.timeline);
