// Live bytes over time, by category, with the peak marked and phases behind.
const CATEGORY_PARTS = {
  parameters: "--part-0", gradients: "--part-7", "optimizer state": "--part-3", activations: "--part-2",
  inputs: "--part-6", temporary: "--part-11", unknown: "--part-14",
};

function memoryOptions(memory) {
  // Axis figures are round in the unit shown, not in bytes.
  const most = Math.max(...memory.live, ...memory.reserved, 1);
  const power = Math.min(4, Math.floor(Math.log2(most) / 10));
  const unit = 1024 ** power;
  const spot = memory.peak_at === null ? 0 : (memory.peak_at - memory.at[0]) / (memory.at[memory.at.length - 1] - memory.at[0] || 1);
  const names = Object.keys(memory.categories);
  const layers = names.length > 0 ? names.map((name) => [name, memory.categories[name]]) : [["live", memory.live]];
  const series = layers.map(([name, column], i) => ({
    type: "line", name, stack: "live", symbol: "none", step: "end", lineStyle: { width: 0 },
    areaStyle: { opacity: 0.9 }, color: css(CATEGORY_PARTS[name] || `--part-${i}`),
    data: column.map((value, k) => [memory.at[k], value / unit]),
  }));
  if (memory.reserved.length > 0) {
    series.push({
      type: "line", name: "reserved", symbol: "none", step: "end", color: css("--text"),
      lineStyle: { width: 1.4, type: "dashed" }, data: memory.reserved.map((value, k) => [memory.at[k], value / unit]),
    });
  }
  if (series.length > 0 && memory.peak_at !== null) {
    series[0].markLine = {
      silent: true, symbol: "none", lineStyle: { color: css("--text"), type: "solid", width: 1 },
      label: { ...label(), color: css("--text"), formatter: `peak ${bytes(memory.peak_bytes)}`, position: "end", align: spot > 0.85 ? "right" : spot < 0.15 ? "left" : "center" },
      data: [{ xAxis: memory.peak_at }],
    };
  }
  const steps = memory.marks.filter((mark) => mark.name === "step");
  if (series.length > 0 && steps.length > 1) {
    series[0].markArea = {
      silent: true, itemStyle: { color: css("--text"), opacity: 0.05 }, label: { show: false },
      data: steps.filter((_, i) => i % 2 === 0).map((mark) => [{ xAxis: mark.begin }, { xAxis: mark.end }]),
    };
  }
  return {
    animation: false,
    grid: { left: 8, right: 16, top: 46, bottom: 24, containLabel: true },
    legend: { top: 0, type: "scroll", textStyle: label(), itemWidth: 12, itemHeight: 10, icon: "roundRect", pageTextStyle: label(), pageIconColor: css("--muted") },
    tooltip: tooltip({
      trigger: "axis",
      formatter: (points) => tip(
        memory.unit === "ms" ? `${ms(points[0].value[0])} ms` : `event ${points[0].value[0]}`,
        [
          ...memory.marks.filter((m) => m.begin <= points[0].value[0] && points[0].value[0] < m.end)
            .map((m) => (m.step === null || m.name !== "step" ? m.name : `step ${m.step}`)),
          ...[...points].reverse().filter((p) => p.value[1] > 0).map((p) => `${p.seriesName}: ${bytes(p.value[1] * unit)}`),
        ],
      ),
    }),
    xAxis: {
      type: "value", name: memory.unit === "ms" ? "ms since the recording began" : "allocator events", nameLocation: "middle",
      nameGap: 24, nameTextStyle: label(), axisLabel: { ...label(), showMaxLabel: false }, min: "dataMin", max: "dataMax", splitLine: { show: false },
      axisLine: { lineStyle: { color: css("--line") } },
    },
    yAxis: { type: "value", axisLabel: { ...label(), formatter: (v) => `${+v.toPrecision(4)} ${UNITS[power]}` }, splitLine: { lineStyle: { color: css("--line") } } },
    series,
  };
}

for (const box of document.querySelectorAll(".memory-chart")) {
  const memory = data.memory.find((entry) => String(entry.device) === box.dataset.device);
  if (memory) chart(box, () => memoryOptions(memory));
}
