// Ranks by steps and by cause, on one canvas: a thousand ranks are a thousand columns of pixels. Where these are
// narrow, a second canvas shows some of them larger, and is drawn again while one scrolls.
function makeHeat(box, near, heat) {
  const [CELL, GAP, AXIS, NAMES, FONT, told] = [12, 8, 18, 124, "11px system-ui, sans-serif", $("heat-told")];
  const strips = [heat.nodes, heat.groups].filter((bands) => bands.length > 0);
  const top = strips.length * (CELL + 2);
  const rows = [
    ...heat.steps.map((values, i) => ({ name: `step ${i + 1} of ${heat.steps.length}`, values, y: top + i * CELL })),
    ...heat.causes.map(([name, values], i) => ({ name, values, y: top + heat.steps.length * CELL + GAP + i * CELL })),
  ];
  const count = heat.ranks.length;
  const bottom = rows[rows.length - 1].y + CELL;
  const height = bottom + AXIS;
  const [track] = near.children;
  const [inner] = track.children;
  // Drawn once; what moves over it is drawn on top.
  const picture = document.createElement("canvas");
  const WIDE = roomForNames();
  let at = null;

  // How wide a rank is, in pixels, where most bands have room for their names.
  function roomForNames() {
    const pen = picture.getContext("2d");
    pen.font = FONT;
    const wanted = strips.flatMap((bands) => bands.map(([first, label], i) => {
      return (pen.measureText(label).width + 8) / ((i + 1 < bands.length ? bands[i + 1][0] : count) - first);
    })).sort((a, b) => a - b);
    return Math.min(Math.max(12, Math.ceil(wanted[Math.floor(0.9 * wanted.length)] || 0)), 40);
  }

  const bandAt = (bands, column) => bands.reduce((found, band) => (band[0] <= column ? band : found), ["", ""])[1];

  // Draws the ranks from `from` on, as many as fit into the canvas where each is so wide.
  function paint(canvas, width, from, each) {
    const ratio = devicePixelRatio || 1;
    [canvas.width, canvas.height] = [Math.round(width * ratio), Math.round(height * ratio)];
    const pen = canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const [late, early] = [partColour(6), partColour(0)];
    const room = Math.max(width - NAMES, 1);
    const x = (column) => NAMES + (column - from) * each;
    const end = Math.min(count, from + room / each);
    pen.save();
    pen.beginPath();
    pen.rect(NAMES, 0, room, height);
    pen.clip();
    // Where ranks are narrower than a pixel, the one that differs most is drawn.
    const shown = Math.ceil(end) - Math.floor(from);
    const columns = Math.min(shown, Math.floor(room * ratio));
    for (const row of rows) {
      for (let c = 0; c < columns; c += 1) {
        const [first, last] = [c, c + 1].map((k) => Math.floor(from) + Math.floor((k * shown) / columns));
        let value = 0;
        for (let i = first; i < last; i += 1) if (Math.abs(row.values[i]) > Math.abs(value)) value = row.values[i];
        pen.globalAlpha = Math.min(Math.abs(value) / 100, 1);
        if (pen.globalAlpha < 0.02) continue;
        pen.fillStyle = value > 0 ? late : early;
        // A late one is to be seen among a thousand.
        const least = pen.globalAlpha < 0.5 ? 0 : 2;
        pen.fillRect(x(first), row.y, Math.max(x(last) - x(first), least), CELL - 1);
      }
    }
    pen.globalAlpha = 1;
    pen.font = FONT;
    strips.forEach((bands, strip) => bands.forEach(([first, label], i) => {
      const last = i + 1 < bands.length ? bands[i + 1][0] : count;
      if (last <= from || first >= end) return;
      const [begin, length] = [x(first), x(last) - x(first)];
      pen.fillStyle = css("--text");
      pen.globalAlpha = i % 2 ? 0.16 : 0.07;
      pen.fillRect(begin, strip * (CELL + 2), length, CELL);
      // Lines between bands may not hide the ranks.
      pen.globalAlpha = strip === 0 ? 0.6 : 0.25;
      if (i > 0 && length > 24) pen.fillRect(begin - 0.5, strip * (CELL + 2), 1, bottom - strip * (CELL + 2));
      pen.globalAlpha = 1;
      const seen = Math.max(begin, NAMES);
      if (pen.measureText(label).width + 6 < begin + length - seen) pen.fillText(label, seen + 3, strip * (CELL + 2) + CELL - 2);
    }));
    pen.fillStyle = css("--muted");
    const marks = Math.min(shown, Math.max(2, Math.floor(room / 120)));
    for (let k = 0; k < marks; k += 1) {
      const column = Math.min(Math.ceil(from) + Math.floor((k * shown) / marks), count - 1);
      pen.fillText(`rank ${heat.ranks[column]}`, x(column), height - 4);
    }
    pen.restore();
    pen.fillStyle = css("--line");
    pen.fillRect(0, top + heat.steps.length * CELL + GAP / 2, width, 1);
    pen.fillRect(NAMES, bottom, room, 1);
    pen.fillStyle = css("--muted");
    pen.font = FONT;
    strips.forEach((bands, strip) => pen.fillText(bands === heat.nodes ? "node" : "group", 0, strip * (CELL + 2) + CELL - 2));
    rows.forEach((row, i) => {
      const inside = i > 0 && i < heat.steps.length - 1;
      if (!inside) pen.fillText(row.name, 0, row.y + CELL - 2, NAMES - 8);
    });
    return [pen, x];
  }

  const each = () => Math.max(box.clientWidth - NAMES, 1) / count;

  function draw() {
    paint(picture, Math.max(box.clientWidth, 1), 0, each());
    // Ranks that are narrow are hard to point at, and their groups have no room for a name.
    near.hidden = each() >= Math.min(WIDE, 24);
    track.style.width = `${NAMES + count * WIDE}px`;
    show();
  }

  function outline(pen, x, wide) {
    pen.strokeStyle = css("--text");
    pen.strokeRect(x(at[0]), rows[at[1]].y, Math.max(wide, 2), CELL - 1);
  }

  function drawNear() {
    if (near.hidden) return;
    inner.style.width = `${near.clientWidth}px`;
    const [pen, x] = paint(inner, Math.max(near.clientWidth, 1), near.scrollLeft / WIDE, WIDE);
    if (at && x(at[0]) >= NAMES) outline(pen, x, WIDE);
  }

  function show() {
    [box.width, box.height] = [picture.width, picture.height];
    const pen = box.getContext("2d");
    pen.drawImage(picture, 0, 0);
    pen.scale(picture.height / height, picture.height / height);
    pen.strokeStyle = css("--muted");
    const seen = (near.clientWidth - NAMES) / WIDE;
    if (!near.hidden) pen.strokeRect(NAMES + (near.scrollLeft / WIDE) * each() + 0.5, 0.5, Math.min(seen, count) * each() - 1, bottom - 1);
    if (at) outline(pen, (column) => NAMES + column * each(), each());
    drawNear();
  }

  function tell(column, row) {
    at = [Math.min(Math.max(column, 0), count - 1), Math.min(Math.max(row, 0), rows.length - 1)];
    const value = (rows[at[1]].values[at[0]] / 100) * heat.most_ms;
    const place = strips.map((bands) => bandAt(bands, at[0])).join(", ");
    told.textContent = `rank ${heat.ranks[at[0]]}, ${rows[at[1]].name}: ${ms(Math.abs(value), heat.most_ms)} ms ${value < 0 ? "less" : "more"} than its peers${place ? `; ${place}` : ""}`;
    show();
  }

  function bring(column) {
    if (!near.hidden) near.scrollLeft = (column + 0.5) * WIDE - (near.clientWidth - NAMES) / 2;
  }

  const rowAt = (y) => {
    const row = rows.findIndex((one) => y < one.y + CELL);
    return row < 0 ? rows.length - 1 : row;
  };
  box.style.height = inner.style.height = `${height}px`;
  box.style.width = "100%";
  box.addEventListener("pointermove", (event) => tell(Math.floor((event.offsetX - NAMES) / each()), rowAt(event.offsetY)));
  box.addEventListener("click", (event) => bring(Math.floor((event.offsetX - NAMES) / each())));
  inner.addEventListener("pointermove", (event) => {
    tell(Math.floor((event.offsetX - NAMES + near.scrollLeft) / WIDE), rowAt(event.offsetY));
  });
  let waiting = false;
  near.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => { waiting = false; show(); });
  });
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (!move) return;
    event.preventDefault();
    if (at) tell(at[0] + move[0], at[1] + move[1]);
    else tell(0, 0);
    bring(at[0]);
  });
  draw();
  charts.push({ chart: { resize() {} }, draw });
  new ResizeObserver(draw).observe(box);
}

if (data.heat && $("heat")) makeHeat($("heat"), $("heat-near"), data.heat);
