// The step budget as one bar, and the step times over the run.
const label = () => ({ color: css("--muted"), fontFamily: css("--sans"), fontSize: 11 });

function budgetOptions() {
  return {
    animation: false,
    grid: { left: 0, right: 0, top: 2, bottom: 2 },
    xAxis: { type: "value", max: data.budget.reduce((sum, line) => sum + line.ms, 0), show: false },
    yAxis: { type: "category", data: [""], show: false },
    tooltip: tooltip({
      formatter: (p) => {
        const line = data.budget[p.seriesIndex];
        return tip(data.parts[line.part], [`${ms(line.ms, data.true_ms)} ms per step, ${percent(line.share)}`]);
      },
    }),
    series: data.budget.map((line) => ({
      type: "bar", stack: "step", barWidth: "100%", data: [line.ms],
      itemStyle: { color: partColour(line.part), borderColor: css("--surface"), borderWidth: 1 },
      emphasis: { disabled: true },
      label: {
        show: line.share > 0.07, overflow: "truncate", width: Math.max(10, line.share * $("budget-chart").clientWidth - 10),
        formatter: `{n|${data.parts[line.part]}}\n{v|${ms(line.ms, data.true_ms)} ms · ${percent(line.share)}}`,
        rich: {
          n: { color: onColour(partColour(line.part)), fontSize: 12, fontWeight: 600, lineHeight: 17 },
          v: { color: onColour(partColour(line.part)), fontSize: 12, lineHeight: 17 },
        },
      },
    })),
  };
}

// Black or white, whichever contrasts more (WCAG relative luminance).
function onColour(hex) {
  const channel = (i) => {
    const c = Number.parseInt(hex.slice(i, i + 2), 16) / 255;
    return c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4;
  };
  const light = 0.2126 * channel(1) + 0.7152 * channel(3) + 0.0722 * channel(5);
  return light > 0.179 ? "#000000" : "#ffffff";
}

const WINDOW_PARTS = { "warm-up": "--muted", baseline: "--accent", trace: "--part-11", memory: "--part-3", between: "--part-2", after: "--part-2" };

// Neighbouring steps of a window. A baseline is timed in stretches, with the captures between them; where a
// window is thinned, each of its steps stands for as many neighbours (the slowest of them).
function stretches(index, each) {
  const runs = [];
  index.forEach((step, i) => {
    if (i > 0 && step - index[i - 1] < 2 * each) runs[runs.length - 1].push(i);
    else runs.push([i]);
  });
  return runs;
}

function stepsOptions() {
  const all = data.windows.flatMap((w) => w.ms.filter((t) => t !== null && t > 0));
  const sorted = [...all].sort((a, b) => a - b);
  const middle = sorted[Math.floor(sorted.length / 2)] || 1;
  const log = sorted.length > 0 && sorted[sorted.length - 1] > 8 * middle;
  const indices = data.windows.flatMap((w) => w.index);
  const [first, last] = [Math.min(...indices) - 0.5, Math.max(...indices) + 0.5];
  const room = $("steps-chart").clientWidth - 110;
  const each = (w) => Math.ceil(w.of_steps / Math.max(w.index.length, 1));
  const counted = data.windows.filter((w) => w.name === "baseline").flatMap((w) =>
    stretches(w.index, each(w)).map((run) => [w.index[run[0]] - each(w), w.index[run[run.length - 1]] + each(w)]));
  const series = data.windows.map((w) => {
    const colour = css(WINDOW_PARTS[w.name] || "--muted");
    const [out, compiled] = [new Set(w.left_out), new Set(w.compiled)];
    // Steps of later stretches that count are shown as the baseline's.
    const later = w.name === "between" || w.name === "after";
    const kept = w.index.map((_, i) => i).filter((i) =>
      !(later && counted.some(([from, to]) => from < w.index[i] && w.index[i] < to)));
    const runs = stretches(kept.map((i) => w.index[i]), each(w)).map((run) => run.map((i) => kept[i]));
    const dot = (i) => {
      const step = w.index[i];
      return {
        value: [step, w.ms[i] > 0 ? w.ms[i] : null],
        note: [w.name, out.has(step) ? "left out of the step time" : "", compiled.has(step) ? "contains a compilation" : ""],
        itemStyle: out.has(step) ? { color: css("--surface"), borderColor: colour, borderWidth: 1.5 } : { color: colour },
      };
    };
    const band = (run) => {
      const [from, to] = [w.index[run[0]] - 0.5, w.index[run[run.length - 1]] + 0.5];
      const wide = ((to - from) / (last - first)) * room > 7 * w.name.length;
      return [{ xAxis: from, label: { ...label(), position: "top", distance: 4, formatter: w.name, show: wide } }, { xAxis: to }];
    };
    return {
      type: "line", name: w.name, symbol: "circle", symbolSize: 6, connectNulls: false, color: colour,
      lineStyle: { width: 1.2, opacity: 0.55 }, emphasis: { scale: 1.6 },
      data: runs.flatMap((run, r) => [...(r > 0 ? [{ value: [w.index[run[0]] - 0.5, null], note: [] }] : []), ...run.map(dot)]),
      markArea: { silent: true, itemStyle: { color: colour, opacity: 0.07 }, data: runs.map(band) },
    };
  });
  if (data.true_ms && series.length > 0) {
    series[0].markLine = {
      silent: true, symbol: "none", lineStyle: { color: css("--accent"), type: "dashed", width: 1.2 },
      label: { ...label(), position: "end", formatter: `${ms(data.true_ms)} ms`, color: css("--accent"), fontWeight: 600 },
      data: [{ yAxis: data.true_ms }],
    };
  }
  return {
    animation: false, aria: { enabled: false },
    grid: { left: 8, right: 64, top: 44, bottom: 22, containLabel: true },
    tooltip: tooltip({
      trigger: "item",
      formatter: (p) => tip(`Step ${p.value[0]}`, [`${ms(p.value[1])} ms`, ...p.data.note]),
    }),
    xAxis: {
      type: "value", name: "step", nameLocation: "middle", nameGap: 22, nameTextStyle: label(), axisLabel: { ...label(), showMinLabel: false, showMaxLabel: false },
      min: first, max: last, minInterval: 1, splitLine: { show: false },
      axisLine: { lineStyle: { color: css("--line") } }, axisTick: { show: false },
    },
    yAxis: {
      type: log ? "log" : "value", name: log ? "ms, log scale" : "ms", nameTextStyle: { ...label(), align: "left" },
      axisLabel: { ...label(), formatter: (v) => ms(v).replace(/\.0+$/, "") }, min: log ? "dataMin" : 0, axisLine: { show: false },
      splitLine: { lineStyle: { color: css("--line") } },
    },
    series,
  };
}

if (data.budget.length > 0) chart($("budget-chart"), budgetOptions);
if (data.windows.length > 0) chart($("steps-chart"), stepsOptions);
