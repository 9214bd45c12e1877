// The Diagnosis tab: what the run waits on, what that costs, what to change, and the trace beside it.
// In: ./runs and ./page. Out: a page in TensorBoard's frame. Text from a run is only ever set as text.

const make = (tag, properties = {}, ...children) => {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children.filter(Boolean));
  return element;
};
const section = (title, ...children) => make('section', {}, make('h2', { textContent: title }), ...children);

const ask = async (address) => {
  const response = await fetch(address);
  const body = await response.json();
  if (!response.ok) throw new Error(body.error || response.statusText);
  return body;
};

const colourOf = (row) => {
  const [light, dark] = row.colours || ['#9aa5b5', '#7f8b9c'];
  return window.matchMedia('(prefers-color-scheme: dark)').matches ? dark : light;
};

const stackedBar = (rows) => {
  const bar = make('div', { className: 'bar' });
  bar.setAttribute('aria-hidden', 'true');
  for (const row of rows.filter((one) => one.share > 0)) {
    const piece = make('span', { title: `${row.label}: ${row.percent}` });
    piece.style.flexGrow = String(row.share);
    piece.style.background = colourOf(row);
    bar.append(piece);
  }
  return bar;
};

// All runs beside each other: bars as long as their steps.
const beside = (rows, choose) => {
  if (rows.length < 2) return null;
  const longest = Math.max(...rows.map((row) => row.step_ms || 0));
  const heads = ['run', 'verdict', 'step, ms', 'where it goes'].map((text) => make('th', { scope: 'col', textContent: text }));
  const lines = rows.map((row) => {
    const bar = stackedBar(row.budget || []);
    bar.style.width = `${longest > 0 ? (100 * (row.step_ms || 0)) / longest : 0}%`;
    const told = (row.budget || []).slice(0, 2).map((part) => `${part.label} ${part.percent}`).join(', ');
    return make('tr', {},
      make('th', { scope: 'row' }, make('button', { type: 'button', textContent: row.run, onclick: () => choose(row.run) })),
      make('td', { className: 'text', textContent: (row.classes || ['not readable']).join(' / ') }),
      make('td', { textContent: row.step_ms === null || row.step_ms === undefined ? 'not measured' : row.step_ms.toLocaleString(undefined, { maximumSignificantDigits: 4 }) }),
      make('td', { className: 'wide' }, bar, make('small', { textContent: told })));
  });
  return make('details', { id: 'beside' }, make('summary', { textContent: `${rows.length} runs side by side` }),
    make('table', {}, make('thead', {}, make('tr', {}, ...heads)), make('tbody', {}, ...lines)));
};

const verdict = (run, page) => make('header', { className: 'verdict' },
  make('p', { className: 'title', textContent: page.title }),
  make('h1', { id: 'verdict' }, page.classes.join(' / '),
    page.confidence === 'none' ? '' : make('span', { className: 'confidence', textContent: `confidence ${page.confidence}` })),
  make('p', { className: 'headline', textContent: page.headline }),
  page.reason && make('p', { textContent: page.reason }),
  make('p', { className: 'quiet', textContent: [page.step, page.device].filter(Boolean).join(' · ') }),
  make('p', { className: 'quiet', id: 'traced', textContent: page.traced }),
  page.report && make('p', {}, make('a', {
    id: 'report', target: '_blank', rel: 'noopener', href: `report.html?${new URLSearchParams({ run })}`,
    textContent: 'Full report: step times, timeline, kernels, memory',
  })));

const budget = (page) => {
  if (!page.budget.length) return null;
  const rows = page.budget.map((row) => {
    const swatch = make('span', { className: 'swatch' });
    swatch.style.background = colourOf(row);
    return make('tr', {},
      make('th', { scope: 'row' }, swatch, row.label, row.detail && make('small', { textContent: ` ${row.detail}` })),
      make('td', { textContent: row.ms }), make('td', { textContent: row.percent }));
  });
  return section(page.budget_title || 'Where the step goes', stackedBar(page.budget),
    make('table', { id: 'budget' },
      make('thead', {}, make('tr', {}, ...['part', page.budget_unit || 'ms', 'share'].map((text) => make('th', { scope: 'col', textContent: text })))),
      make('tbody', {}, ...rows)));
};

const withoutIt = ({ code, without, bound }) =>
  without ? `${code} · step without it ${bound ? '≥ ' : ''}${without} ms` : code;

const causes = (page, show) => {
  if (!page.causes.length && !page.small_causes) return null;
  const list = page.causes.map((cause) => {
    const place = page.places[cause.code];
    const button = place && show
      ? make('button', { type: 'button', className: 'show', textContent: 'Show in the trace', onclick: () => show(place) })
      : null;
    if (button) button.setAttribute('aria-label', `Show ${cause.name} in the trace`);
    return make('li', { 'data-code': cause.code },
      make('p', {}, make('strong', { textContent: cause.name }),
        ` ${cause.bound ? '≤ ' : ''}${cause.cost} ms, ${cause.share} `,
        make('span', { className: 'quiet', textContent: withoutIt(cause) })),
      cause.means && make('p', { textContent: cause.means }),
      ...cause.sites.map((site) => make('p', {}, make('code', { textContent: site }))),
      cause.after_previous && make('p', { className: 'quiet', textContent: cause.after_previous }),
      button);
  });
  return section('What each cause costs', make('ol', { id: 'causes' }, ...list),
    page.small_causes && make('p', { className: 'quiet', textContent: `Below 2 % of the step: ${page.small_causes}.` }));
};

const RANK_COLUMNS = [['rank', 'rank'], ['step', 'step, ms'], ['own', 'own work, ms'], ['waits', 'waits for others, ms'],
  ['transfer', 'transfer, ms'], ['bubble', 'bubble, ms'], ['late', 'late by, ms'], ['why', 'why']];

// Of several ranks: who is late, and the few that are worth a look.
const ranks = (page) => {
  const late = page.late || [], rows = page.ranks || [];
  if (!late.length && !rows.length) return null;
  const columns = RANK_COLUMNS.filter(([key]) => key !== 'bubble' || rows.some((row) => row.bubble));
  const lines = rows.map((row) => make('tr', {}, ...columns.map(([key]) =>
    make(key === 'rank' ? 'th' : 'td', { className: key === 'why' ? 'text' : '', textContent: row[key] }))));
  return section('Ranks', ...late.map(([who, why, without]) => make('p', { className: 'late' },
    make('strong', { textContent: who }), why && ` ${why}`,
    without && make('span', { className: 'quiet', textContent: ` · step without it ${without}` }))),
    rows.length && make('table', { id: 'ranks' },
      make('thead', {}, make('tr', {}, ...columns.map(([, title]) => make('th', { scope: 'col', textContent: title })))),
      make('tbody', {}, ...lines)),
    ...(page.groups || []).map((text) => make('p', { className: 'quiet group', textContent: text })));
};

const copyButton = (code) => {
  const button = make('button', { type: 'button', className: 'copy', textContent: 'Copy' });
  button.onclick = async () => {
    try {
      await navigator.clipboard.writeText(code);
      button.textContent = 'Copied';
    } catch {
      button.textContent = 'Select and copy';
    }
    setTimeout(() => { button.textContent = 'Copy'; }, 2000);
  };
  return button;
};

const fix = (row, open) => {
  const told = [['Careful', row.warning], ['Not checked', row.unchecked], ['Gain from', row.basis],
    ['Undo', row.undo], ['Verify', row.verify]].filter(([, text]) => text);
  return make('details', { open },
    make('summary', {}, make('strong', { textContent: `${row.fix} ${row.title}` }), ' ', make('span', { className: 'quiet', textContent: row.gain })),
    row.measured && make('p', {}, make('strong', { textContent: 'Measured: ' }), row.measured),
    row.how && make('p', { textContent: row.how }),
    row.where && make('p', {}, 'at ', make('code', { textContent: row.where })),
    row.code && make('div', { className: 'code' }, copyButton(row.code), make('pre', {}, make('code', { textContent: row.code }))),
    told.length && make('ul', {}, ...told.map(([name, text]) => make('li', { textContent: `${name}: ${text}` }))));
};

const fixes = (page) => {
  if (!page.fixes.length && !page.useless.length) return null;
  const main = page.fixes.filter((row) => !row.minor);
  const minor = page.fixes.filter((row) => row.minor);
  return section('What to change', page.together && make('p', { textContent: page.together }),
    ...main.map((row, index) => fix(row, index === 0)),
    minor.length && make('details', { className: 'more' }, make('summary', { textContent: `${minor.length} more, small or worth knowing` }),
      ...minor.map((row) => fix(row, false))),
    page.useless.length && make('details', { className: 'more' }, make('summary', { textContent: `${page.useless.length} tried here, no help` }),
      make('ul', {}, ...page.useless.map(([name, figures]) => make('li', { textContent: `${name}: ${figures}` })))));
};

const closing = (page) => section('How far to trust this', make('p', { textContent: page.capture }),
  page.problems.length && make('ul', {}, ...page.problems.map((text) => make('li', { textContent: text }))),
  ...page.settings.map(([state, names]) => make('p', { className: 'quiet' }, make('strong', { textContent: `${state}: ` }), names)));

const trace = (run, page, viewer) => {
  const pane = make('section', { className: 'trace' });
  pane.setAttribute('aria-label', 'Trace');
  if (!page.traces.length || !viewer) {
    const why = page.traces.length ? 'The trace viewer comes with torch-tb-profiler, which is not installed here: pip install torch-tb-profiler' : 'This run has no trace.';
    pane.append(make('p', { className: 'quiet', textContent: why }));
    return { pane, show: null };
  }
  const frame = make('iframe', { title: 'Trace viewer', id: 'viewer' });
  const note = make('p', { className: 'quiet', id: 'trace-note' });
  note.setAttribute('role', 'status');
  let shown = null;
  let ready = false;
  let waiting = null;
  const load = (file) => {
    shown = file;
    ready = false;
    note.textContent = `Loading ${file.file} …`;
    frame.src = `viewer.html?${new URLSearchParams({ run, file: file.file })}`;
  };
  const say = () => {
    note.textContent = [`${shown.steps} of ${shown.of_steps} traced steps, ${shown.events.toLocaleString()} events.`, shown.note].filter(Boolean).join(' ');
  };
  const receive = (event) => {
    if (event.source !== frame.contentWindow || event.origin !== window.location.origin) return;
    if (event.data.trace === 'ready') {
      ready = true;
      say();
      pane.dataset.state = 'ready';
      if (waiting) frame.contentWindow.postMessage({ show: waiting }, window.location.origin);
      waiting = null;
    } else if (event.data.trace === 'failed') {
      note.textContent = `The trace cannot be shown: ${event.data.why}`;
    } else if (event.data.trace === 'shown') {
      pane.dataset.shown = `${event.data.low} ${event.data.high}`;
      note.textContent = `Zoomed to: ${event.data.title} (${(event.data.high - event.data.low).toFixed(3)} ms)`;
    }
  };
  window.addEventListener('message', receive);
  const pick = make('select', { id: 'rank' }, ...page.traces.map((file) => make('option', { value: file.file, textContent: `rank ${file.rank}` })));
  pick.onchange = () => load(page.traces.find((file) => file.file === pick.value));
  const bar = make('div', { className: 'tracebar' },
    page.traces.length > 1 ? make('label', {}, 'Trace of ', pick) : null, note);
  pane.append(bar, frame);
  const [place] = Object.values(page.places);
  const first = page.traces.find((file) => place && file.rank === place.rank) || page.traces[0];
  pick.value = first.file;
  load(first);
  const show = (place) => {
    const file = page.traces.find((one) => one.rank === place.rank);
    if (!file) return;
    if (file !== shown) {
      pick.value = file.file;
      load(file);
    }
    pane.scrollIntoView({ block: 'nearest' });
    if (ready) frame.contentWindow.postMessage({ show: place }, window.location.origin);
    else waiting = place;
  };
  return { pane, show, stop: () => window.removeEventListener('message', receive) };
};

let stop = null;
let asked = 0;
const draw = async (root, run, viewer) => {
  asked += 1;
  const turn = asked;
  if (stop) stop();
  stop = null;
  delete root.dataset.run;
  root.replaceChildren(make('p', { textContent: 'Loading …' }));
  let page;
  try {
    page = await ask(`./page?${new URLSearchParams({ run })}`);
  } catch (error) {
    if (turn !== asked) return;
    root.replaceChildren(make('p', { role: 'alert', textContent: `${run} cannot be shown: ${error.message}` }));
    return;
  }
  // Another run was chosen meanwhile: an answer that comes late must not take its place.
  if (turn !== asked) return;
  const shown = trace(run, page, viewer);
  stop = shown.stop;
  root.replaceChildren(
    make('article', {}, ...[verdict(run, page), budget(page), causes(page, shown.show), ranks(page), fixes(page), closing(page)].filter(Boolean)),
    shown.pane);
  root.dataset.run = run;
};

export async function render() {
  document.documentElement.lang = 'en';
  document.head.append(make('link', { rel: 'stylesheet', href: './page.css' }));
  const root = make('main', {});
  const nav = make('nav', {});
  nav.setAttribute('aria-label', 'Runs');
  document.body.replaceChildren(nav, root);
  const { runs, viewer, beside: rows } = await ask('./runs');
  if (!runs.length) {
    root.append(make('p', { textContent: 'No diagnosis in this log folder. Make one with: bottleneck diagnose train.py, or bottleneck review RUN' }));
    return;
  }
  const pick = make('select', { id: 'run' }, ...runs.map((run) => make('option', { value: run, textContent: run })));
  pick.onchange = () => draw(root, pick.value, viewer);
  const choose = (run) => {
    pick.value = run;
    return draw(root, run, viewer);
  };
  nav.append(make('label', {}, 'Run ', pick), beside(rows, choose) || '');
  await draw(root, runs[0], viewer);
}
