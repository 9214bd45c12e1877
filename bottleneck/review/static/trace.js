// The trace viewer of the Diagnosis tab.
// In: ?run= and ?file= of the trace; messages {show: {step, offset_us, dur_us}} from the tab.
// Out: the trace, zoomed to what was asked for; messages {trace: 'ready' | 'failed' | 'shown'} to the tab.
(() => {
  'use strict';
  let viewer = null;
  let wanted = null;
  let ready = false;

  const tell = (message) => window.parent.postMessage(message, window.location.origin);
  const state = (text) => {
    const line = document.getElementById('state');
    if (line) line.textContent = text;
  };
  const fail = (why) => {
    state(`The trace cannot be shown: ${why}`);
    tell({ trace: 'failed', why: String(why) });
  };

  // The block of a step in the Diagnosis lane: places are told from its begin.
  const blockOf = (step) => {
    for (const slice of slicesOfLane()) {
      if (slice.args && slice.args.step === step) return slice;
    }
    return null;
  };
  function* slicesOfLane() {
    for (const process of viewer.model.getAllProcesses()) {
      for (const thread of Object.values(process.threads)) {
        for (const slice of thread.sliceGroup.slices) {
          if (slice.category === 'diagnosis') yield slice;
        }
      }
    }
  }

  const show = (place) => {
    const block = blockOf(place.step);
    if (!block) return;
    const low = block.start + place.offset_us / 1000;
    const high = low + place.dur_us / 1000;
    const margin = Math.max((high - low) * 0.25, 0.002);
    const viewport = viewer.trackView.viewport;
    const container = viewer.trackView.modelTrackContainer_ || viewer.trackView;
    const width = (container.canvas || container).offsetWidth || window.innerWidth - 200;
    const display = viewport.currentDisplayTransform.clone();
    display.xSetWorldBounds(low - margin, high + margin, width * (window.devicePixelRatio || 1));
    viewport.setDisplayTransformImmediately(display);
    const inside = [...slicesOfLane()].filter((slice) => slice !== block && slice.start < high && slice.end > low && slice.args.step === undefined);
    const longest = inside.sort((a, b) => b.duration - a.duration)[0] || block;
    viewer.brushingStateController.changeSelectionFromTimeline(new tr.model.EventSet([longest]));
    tell({ trace: 'shown', low, high, title: longest.title });
  };

  const load = async () => {
    const query = new URLSearchParams(window.location.search);
    const address = `trace?${new URLSearchParams({ run: query.get('run') || '', file: query.get('file') || '' })}`;
    const response = await fetch(address);
    if (!response.ok) throw new Error((await response.json()).error || response.statusText);
    const text = await response.text();
    const container = document.createElement('track-view-container');
    container.id = 'track_view_container';
    viewer = document.createElement('tr-ui-timeline-view');
    viewer.track_view_container = container;
    Polymer.dom(viewer).appendChild(container);
    viewer.id = 'viewer';
    viewer.globalMode = true;
    const model = new tr.Model();
    await new tr.importer.Import(model).importTracesWithProgressDialog([text]);
    document.getElementById('state').remove();
    Polymer.dom(document.body).appendChild(viewer);
    viewer.model = model;
    viewer.viewTitle = query.get('file') || 'trace';
    await attached();
    ready = true;
    tell({ trace: 'ready' });
    if (wanted) show(wanted);
    wanted = null;
  };

  // The viewer shows all of the trace once it has found out how wide it is: what is shown before is lost.
  const attached = async () => {
    const end = Date.now() + 5000;
    while (Date.now() < end && (!viewer.trackView || viewer.trackView.pollIfViewportAttachedInterval_ !== undefined)) {
      await new Promise((then) => setTimeout(then, 20));
    }
  };

  window.addEventListener('message', (event) => {
    if (event.origin !== window.location.origin || !event.data || !event.data.show) return;
    if (ready) show(event.data.show);
    else wanted = event.data.show;
  });
  document.addEventListener('WebComponentsReady', () => load().catch(fail));
  window.addEventListener('error', (event) => { if (!viewer) fail(event.message); });
})();
