// Tables that can be sorted by any column, and the kernels filtered by name and class.
function sortable(table) {
  const heads = [...table.tHead.rows[0].cells];
  const body = table.tBodies[0];
  const key = (row, column, number) => {
    const cell = row.cells[column];
    if (!number) return cell.textContent.trim().toLowerCase();
    return Number.parseFloat(cell.dataset.value ?? cell.textContent);
  };
  heads.forEach((head, column) => {
    const number = "number" in head.dataset;
    const button = element("button", head.textContent, "sort");
    button.type = "button";
    head.replaceChildren(button);
    if (!head.hasAttribute("aria-sort")) head.setAttribute("aria-sort", "none");
    button.addEventListener("click", () => {
      const now = head.getAttribute("aria-sort");
      const next = now === "none" ? (number ? "descending" : "ascending") : now === "ascending" ? "descending" : "ascending";
      for (const other of heads) other.setAttribute("aria-sort", "none");
      head.setAttribute("aria-sort", next);
      const sign = next === "ascending" ? 1 : -1;
      const rows = [...body.rows].sort((a, b) => {
        const [x, y] = [key(a, column, number), key(b, column, number)];
        return sign * (number ? x - y : x.localeCompare(y));
      });
      body.append(...rows);
      announce(`Sorted by ${button.textContent}, ${next}`);
    });
  });
}

function kernelFilter() {
  const table = $("kernel-table");
  if (!table) return;
  const rows = [...table.tBodies[0].rows];
  const [text, part, count] = [$("kernel-filter"), $("kernel-part"), $("kernel-count")];
  for (const name of [...new Set(rows.map((row) => row.dataset.part))].sort()) {
    const option = element("option", name);
    option.value = name;
    part.append(option);
  }
  const apply = () => {
    const wanted = text.value.trim().toLowerCase();
    let shown = 0, time = 0, share = 0;
    for (const row of rows) {
      const fits = row.cells[0].textContent.toLowerCase().includes(wanted) && (!part.value || row.dataset.part === part.value);
      row.hidden = !fits;
      if (!fits) continue;
      shown += 1;
      time += Number(row.dataset.ms);
      share += Number(row.dataset.share);
    }
    count.textContent = `${shown} of ${rows.length}: ${ms(time)} ms, ${percent(share)} of the step`;
  };
  text.addEventListener("input", apply);
  part.addEventListener("change", apply);
  $("kernel-whole").addEventListener("change", (event) => table.classList.toggle("whole", event.target.checked));
  $("kernel-tools").hidden = false;
  apply();
}

for (const table of document.querySelectorAll("table[data-sortable]")) sortable(table);
kernelFilter();
