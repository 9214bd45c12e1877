// The part of Google Charts that torch-tb-profiler 0.4.3 uses, drawn by ECharts.
// In: calls to `google.charts` and `google.visualization`. Out: the same charts, without a network.
// Google's loader is a hosted service that may not be shipped; its API is what the tab is written to.
(() => {
  'use strict';
  if (window.google && window.google.visualization) return;
  const plain = (cell) => (cell !== null && typeof cell === 'object' && 'v' in cell ? cell.v : cell);
  const shown = (cell) => {
    if (cell === null || cell === undefined) return '';
    if (typeof cell === 'object' && 'f' in cell) return String(cell.f);
    const value = plain(cell);
    return typeof value === 'number' ? value.toLocaleString(undefined, { maximumFractionDigits: 3 }) : String(value);
  };
  // Text of a cell that may hold markup: what it says, never what it does.
  const textOf = (value) => new DOMParser().parseFromString(String(value), 'text/html').body.textContent;
  const PALETTE = ['#3366cc', '#dc3912', '#ff9900', '#109618', '#990099', '#0099c6', '#dd4477', '#66aa00',
    '#b82e2e', '#316395', '#994499', '#22aa99', '#aaaa11', '#6633cc', '#e67300'];

  class DataTable {
    constructor() {
      this.columns = [];
      this.rows = [];
      this.properties = new Map();
    }
    addColumn(column, label) {
      this.columns.push(typeof column === 'string' ? { type: column, label } : column);
    }
    addRow(row) { this.rows.push(row); }
    addRows(rows) { for (const row of rows) this.rows.push(row); }
    setProperty(row, column, name, value) { this.properties.set(`${row},${column},${name}`, value); }
    getProperty(row, column, name) { return this.properties.get(`${row},${column},${name}`); }
    getNumberOfRows() { return this.rows.length; }
    getNumberOfColumns() { return this.columns.length; }
    getValue(row, column) { return plain(this.rows[row][column]); }
    // Columns that hold values; tooltips and styles ride along in columns with a role.
    valueColumns() {
      return this.columns.map((column, index) => ({ ...column, index })).filter((column) => !column.role);
    }
  }

  const arrayToDataTable = (cells) => {
    const table = new DataTable();
    for (const head of cells[0]) table.addColumn(typeof head === 'object' ? head : { label: String(head) });
    table.addRows(cells.slice(1));
    return table;
  };

  class Chart {
    constructor(container) {
      this.container = container;
      this.listeners = new Map();
      this.selection = [];
    }
    on(name, handler) { this.listeners.set(name, [...(this.listeners.get(name) || []), handler]); }
    fire(name, event) { for (const handler of this.listeners.get(name) || []) handler(event || {}); }
    getSelection() { return this.selection; }
    setSelection(selection) { this.selection = selection || []; }
    clearChart() {
      if (this.observer) this.observer.disconnect();
      if (this.chart) this.chart.dispose();
      this.chart = null;
    }
    draw(table, options) {
      this.clearChart();
      const height = parseInt((options || {}).height, 10) || 300;
      this.container.style.height = `${height}px`;
      this.container.setAttribute('role', 'img');
      this.container.setAttribute('aria-label', (options || {}).title || table.valueColumns().map((c) => c.label).join(', '));
      this.chart = echarts.init(this.container, null, { renderer: 'svg', height });
      this.chart.setOption({ animation: false, color: (options || {}).colors || PALETTE, ...this.option(table, options || {}) });
      this.chart.on('click', (event) => {
        this.selection = [{ row: event.dataIndex, column: (event.seriesIndex || 0) + 1 }];
        this.fire('select');
      });
      this.observer = new ResizeObserver(() => this.chart && this.chart.resize());
      this.observer.observe(this.container);
      this.fire('ready');
    }
    heading(options) {
      return options.title ? { text: options.title, textStyle: { fontSize: 13 }, left: 'center' } : undefined;
    }
  }

  class AxisChart extends Chart {
    option(table, options) {
      const [domain, ...series] = table.valueColumns();
      const numeric = domain.type === 'number';
      const stacked = options.isStacked && this.stackable;
      return {
        title: this.heading(options),
        tooltip: { trigger: 'axis', confine: true, renderMode: 'richText', axisPointer: { type: 'shadow' } },
        legend: { type: 'scroll', bottom: 0 },
        grid: { left: 72, right: 24, top: options.title ? 36 : 16, bottom: 56 },
        dataZoom: options.explorer ? [{ type: 'inside' }] : undefined,
        xAxis: {
          type: numeric ? 'value' : 'category',
          scale: true,
          name: (options.hAxis || {}).title,
          nameLocation: 'middle',
          nameGap: 24,
          data: numeric ? undefined : table.rows.map((row) => shown(row[domain.index])),
        },
        yAxis: { type: 'value', name: (options.vAxis || {}).title, nameLocation: 'middle', nameGap: 56 },
        series: series.map((column, place) => this.series(table, column, { numeric, domain, stacked, place, options })),
      };
    }
    series(table, column, { numeric, domain, stacked, place, options }) {
      const kind = ((options.series || {})[place] || {}).type || options.seriesType || this.kind;
      return {
        type: kind === 'bars' || kind === 'bar' ? 'bar' : 'line',
        name: column.label || `series ${place + 1}`,
        stack: stacked ? 'all' : undefined,
        symbol: table.rows.length > 200 ? 'none' : 'circle',
        symbolSize: 4,
        sampling: 'lttb',
        data: table.rows.map((row) => (numeric ? [plain(row[domain.index]), plain(row[column.index])] : plain(row[column.index]))),
      };
    }
    getChartLayoutInterface() {
      const chart = this.chart;
      const width = this.container.clientWidth;
      return {
        getChartAreaBoundingBox: () => ({ left: 72, top: 16, width: Math.max(width - 96, 1), height: 1 }),
        getHAxisValue: (pixel) => chart.convertFromPixel({ xAxisIndex: 0 }, pixel),
      };
    }
  }
  class ColumnChart extends AxisChart { get kind() { return 'bar'; } get stackable() { return true; } }
  class ComboChart extends AxisChart { get kind() { return 'bar'; } }
  class LineChart extends AxisChart {
    get kind() { return 'line'; }
    draw(table, options) {
      super.draw(table, options);
      // Zooming changes what the memory table below covers; the tab watches the container for that.
      this.chart.on('datazoom', () => this.container.setAttribute('data-zoomed', String(Date.now())));
    }
  }
  class SteppedAreaChart extends AxisChart {
    // One bar per step reads better than a stepped area of a few steps, and says the same.
    get kind() { return 'bar'; }
    get stackable() { return true; }
  }
  class PieChart extends Chart {
    // The legend has the right half.
    radii(whole) {
      const outer = Math.min(this.container.clientWidth * (whole ? 0.9 : 0.42), this.chart.getHeight() * 0.85) / 2;
      return [outer / 2, outer];
    }
    option(table, options) {
      const [name, value] = table.valueColumns();
      return {
        title: this.heading(options),
        tooltip: { trigger: 'item', confine: true, renderMode: 'richText', formatter: ({ name: label, value: v, percent }) => `${label}\n${shown(v)} (${percent} %)` },
        legend: options.legend === 'none' ? undefined : {
          type: 'scroll', orient: 'vertical', left: '46%', top: 'middle', itemWidth: 14,
          textStyle: { width: Math.max(this.container.clientWidth * 0.5 - 50, 40), overflow: 'truncate', fontSize: 11 },
        },
        series: [{
          type: 'pie',
          radius: this.radii(options.legend === 'none'),
          center: [options.legend === 'none' ? '50%' : '23%', '52%'],
          label: { show: false },
          data: table.rows.map((row) => ({ name: shown(row[name.index]), value: plain(row[value.index]) })),
        }],
      };
    }
  }
  class Timeline extends Chart {
    option(table, options) {
      const layers = [...new Set(table.rows.map((row) => String(row[0])))];
      return {
        tooltip: { confine: true, renderMode: 'richText', formatter: ({ data }) => data.told },
        grid: { left: 48, right: 24, top: 8, bottom: 32 },
        dataZoom: [{ type: 'inside' }],
        xAxis: { type: 'value', scale: true, name: 'ms' },
        yAxis: { type: 'category', data: layers, inverse: true },
        series: [{
          type: 'custom',
          encode: { x: [1, 2], y: 0 },
          data: table.rows.map((row) => ({ value: [layers.indexOf(String(row[0])), row[3], row[4]], told: String(row[2]), text: String(row[1]) })),
          renderItem: (params, api) => {
            const [x0, y] = api.coord([api.value(1), api.value(0)]);
            const [x1] = api.coord([api.value(2), api.value(0)]);
            const height = api.size([0, 1])[1] * 0.7;
            return { type: 'rect', shape: { x: x0, y: y - height / 2, width: Math.max(x1 - x0, 1), height }, style: { fill: PALETTE[params.dataIndex % PALETTE.length] } };
          },
        }],
      };
    }
  }

  class Table extends Chart {
    draw(table, options) {
      this.table = table;
      this.options = options || {};
      this.page = 0;
      this.order = table.rows.map((_, index) => index);
      if (this.options.sortColumn !== undefined) this.sort(this.options.sortColumn, !!this.options.sortAscending);
      this.show();
      this.fire('ready');
    }
    clearChart() { this.container.replaceChildren(); }
    sort(column, ascending) {
      this.sorted = { column, ascending };
      const sign = ascending ? 1 : -1;
      const value = (index) => plain(this.table.rows[index][column]);
      this.order.sort((a, b) => (value(a) > value(b) ? sign : value(a) < value(b) ? -sign : 0));
    }
    show() {
      const { table, options } = this;
      const columns = table.valueColumns();
      const size = options.page ? options.pageSize || 30 : table.rows.length;
      const element = document.createElement('table');
      element.style.cssText = 'border-collapse:collapse;width:100%;font:12px Roboto,Arial,sans-serif';
      const head = element.createTHead().insertRow();
      for (const column of columns) {
        const cell = document.createElement('th');
        const button = document.createElement('button');
        button.type = 'button';
        button.textContent = column.label || column.id || '';
        button.style.cssText = 'all:unset;cursor:pointer;font-weight:bold';
        button.onclick = () => {
          const again = this.sorted && this.sorted.column === column.index;
          this.sort(column.index, again ? !this.sorted.ascending : false);
          this.page = 0;
          this.show();
        };
        const mark = this.sorted && this.sorted.column === column.index;
        cell.setAttribute('aria-sort', mark ? (this.sorted.ascending ? 'ascending' : 'descending') : 'none');
        cell.style.cssText = 'border:1px solid #ddd;padding:4px 6px;text-align:left;background:#f2f4f8;color:#222';
        cell.append(button);
        head.append(cell);
      }
      const body = element.createTBody();
      for (const index of this.order.slice(this.page * size, (this.page + 1) * size)) {
        const row = body.insertRow();
        for (const column of columns) {
          const cell = row.insertCell();
          const value = table.rows[index][column.index];
          cell.textContent = options.allowHtml ? textOf(shown(value)) : shown(value);
          cell.style.cssText = `border:1px solid #ddd;padding:3px 6px;overflow-wrap:anywhere;text-align:${typeof plain(value) === 'number' ? 'right' : 'left'}`;
          const style = table.getProperty(index, column.index, 'style');
          if (style) cell.style.cssText += `;${style}`;
          const spread = table.getProperty(index, column.index, 'className');
          if (spread) cell.className = spread;
        }
      }
      const parts = [element];
      const pages = Math.ceil(table.rows.length / Math.max(size, 1));
      if (pages > 1) parts.push(this.pager(pages));
      this.container.replaceChildren(...parts);
      this.container.style.overflow = 'auto';
      this.container.style.maxHeight = '100%';
    }
    pager(pages) {
      const line = document.createElement('div');
      const turn = (text, by) => {
        const button = document.createElement('button');
        button.type = 'button';
        button.textContent = text;
        button.disabled = this.page + by < 0 || this.page + by >= pages;
        button.onclick = () => { this.page += by; this.show(); };
        return button;
      };
      line.append(turn('Previous', -1), ` page ${this.page + 1} of ${pages} `, turn('Next', 1));
      line.style.cssText = 'padding:6px;font:13px Roboto,Arial,sans-serif';
      return line;
    }
  }

  window.google = {
    charts: { load: () => Promise.resolve(), setOnLoadCallback: (then) => Promise.resolve().then(then) },
    visualization: {
      DataTable, arrayToDataTable, ColumnChart, ComboChart, LineChart, PieChart, SteppedAreaChart, Table, Timeline,
      events: { addListener: (chart, name, handler) => chart.on(name, handler) },
    },
  };
})();
