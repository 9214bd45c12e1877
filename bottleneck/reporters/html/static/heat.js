// Ranks by steps and by cause, on one canvas: a thousand ranks are a thousand columns of pixels.
function makeHeat(box, heat) {
  const [CELL, GAP, AXIS, NAMES, told] = [12, 8, 18, 124, $("heat-told")];
  const rows = [
    ...heat.steps.map((values, i) => ({ name: `step ${i + 1} of ${heat.steps.length}`, values, y: i * CELL })),
    ...heat.causes.map(([name, values], i) => ({ name, values, y: heat.steps.length * CELL + GAP + i * CELL })),
  ];
  const count = heat.ranks.length;
  const bottom = rows[rows.length - 1].y + CELL;
  const height = bottom + AXIS;
  // Drawn once; what moves over it is drawn on top.
  const picture = document.createElement("canvas");
  let at = null;

  function draw() {
    const width = Math.max(box.clientWidth, 1);
    const ratio = devicePixelRatio || 1;
    [picture.width, picture.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const pen = picture.getContext("2d");
    pen.scale(ratio, ratio);
    const [late, early] = [partColour(6), partColour(0)];
    const room = Math.max(width - NAMES, 1);
    const each = room / count;
    // Where ranks are narrower than a pixel, the one that differs most is drawn.
    const columns = Math.min(count, Math.floor(room * ratio));
    for (const row of rows) {
      for (let c = 0; c < columns; c += 1) {
        let value = 0;
        for (let i = Math.floor((c * count) / columns); i < Math.floor(((c + 1) * count) / columns); i += 1) {
          if (Math.abs(row.values[i]) > Math.abs(value)) value = row.values[i];
        }
        pen.globalAlpha = Math.min(Math.abs(value) / 100, 1);
        if (pen.globalAlpha < 0.02) continue;
        pen.fillStyle = value > 0 ? late : early;
        // A late one is to be seen among a thousand.
        const least = pen.globalAlpha < 0.5 ? 0 : 2;
        pen.fillRect(NAMES + (c * room) / columns, row.y, Math.max(room / columns, least), CELL - 1);
      }
    }
    pen.globalAlpha = 1;
    pen.fillStyle = css("--line");
    pen.fillRect(0, heat.steps.length * CELL + GAP / 2, width, 1);
    pen.fillRect(NAMES, bottom, room, 1);
    if (room / (heat.nodes.length + 1) > 24) for (const node of heat.nodes) pen.fillRect(NAMES + node * each, 0, 1, bottom);
    pen.fillStyle = css("--muted");
    pen.font = "11px system-ui, sans-serif";
    rows.forEach((row, i) => {
      const inside = i > 0 && i < heat.steps.length - 1;
      if (!inside) pen.fillText(row.name, 0, row.y + CELL - 2, NAMES - 8);
    });
    const marks = Math.min(count, Math.max(2, Math.floor(room / 120)));
    for (let k = 0; k < marks; k += 1) {
      const column = Math.floor((k * count) / marks);
      pen.fillText(`rank ${heat.ranks[column]}`, NAMES + column * each, height - 4);
    }
    show();
  }

  function show() {
    [box.width, box.height] = [picture.width, picture.height];
    const pen = box.getContext("2d");
    pen.drawImage(picture, 0, 0);
    if (!at) return;
    const ratio = picture.height / height;
    const each = (picture.width / ratio - NAMES) / count;
    pen.scale(ratio, ratio);
    pen.strokeStyle = css("--text");
    pen.strokeRect(NAMES + at[0] * each, rows[at[1]].y, Math.max(each, 2), CELL - 1);
  }

  function tell(column, row) {
    at = [Math.min(Math.max(column, 0), count - 1), Math.min(Math.max(row, 0), rows.length - 1)];
    const value = (rows[at[1]].values[at[0]] / 100) * heat.most_ms;
    told.textContent = `rank ${heat.ranks[at[0]]}, ${rows[at[1]].name}: ${ms(Math.abs(value), heat.most_ms)} ms ${value < 0 ? "less" : "more"} than its peers`;
    show();
  }

  box.style.height = `${height}px`;
  box.style.width = "100%";
  box.addEventListener("pointermove", (event) => {
    const row = rows.findIndex((each) => event.offsetY < each.y + CELL);
    tell(Math.floor(((event.offsetX - NAMES) / (box.clientWidth - NAMES)) * count), row < 0 ? rows.length - 1 : row);
  });
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    if (at) tell(at[0] + move[0], at[1] + move[1]);
    else tell(0, 0);
  });
  draw();
  charts.push({ chart: { resize() {} }, draw });
  new ResizeObserver(draw).observe(box);
}

if (data.heat && $("heat")) makeHeat($("heat"), data.heat);
