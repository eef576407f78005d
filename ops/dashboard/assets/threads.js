// What crosses the rows of the weave: versions from the learner to engines, samples from engines to the learner.

function curve(pen, from, to) {
  const middle = (from.y + to.y) / 2;
  pen.beginPath();
  pen.moveTo(from.x, from.y);
  pen.bezierCurveTo(from.x, middle, to.x, middle, to.x, to.y);
  pen.stroke();
}

function dot(pen, at, size) {
  pen.beginPath();
  pen.arc(at.x, at.y, size, 0, 7);
  pen.fill();
}

// The edge of a row that looks towards another one.
const edge = (row, other) => (other.y > row.y ? row.y + row.height : row.y);

export function versionThreads(rows, versions) {
  const learner = rows.find((row) => row.process.stage === "learner");
  const found = [];
  if (!learner) return found;
  const byInstance = new Map(rows.map((row) => [row.process.instance, row]));
  for (const each of versions) {
    const left = each.staged_ms ?? each.published_ms ?? each.trained_ms;
    for (const [instance, served] of Object.entries(each.served_ms || {})) {
      const row = byInstance.get(instance);
      if (row && row !== learner && left) found.push({ from: learner, to: row, left, arrived: Math.max(left, served), version: each.version });
    }
  }
  return found;
}

export function sampleThreads(rows, spans) {
  const learner = rows.find((row) => row.process.stage === "learner");
  if (!learner) return [];
  const steps = (spans[learner.process.instance] || []).filter((span) => span.phase === "forward_backward").map((span) => span.began_ms);
  const found = [];
  for (const row of rows) {
    const made = row.process.made;
    if (!made) continue;
    made.values.forEach((value, index) => {
      if (!value) return;
      const left = made.began_ms + (index + 0.5) * made.bin_ms;
      const arrived = steps[firstFrom(steps, left)];
      if (arrived) found.push({ from: row, to: learner, left, arrived, size: value });
    });
  }
  return found;
}

function firstFrom(times, at) {
  let low = 0;
  let high = times.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (times[middle] < at) low = middle + 1;
    else high = middle;
  }
  return low;
}

const NICE_MS = [0.2, 0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400].map((each) => each * 1000);
const ROOM = 44; // pixels between two threads of a row once they are thinned out
const CROWD = 3; // more than so many in one such stretch are a crowd

const engine = (thread) => (thread.from.process.stage === "learner" ? thread.to : thread.from);

// Of threads that would be a fence one per stretch of time: stretches stand still while the window moves, so threads do, too.
function thinned(threads, { x, begins, ends }) {
  const width = x(ends) - x(begins);
  const size = NICE_MS.find((each) => (each / (ends - begins)) * width >= ROOM) || NICE_MS[NICE_MS.length - 1];
  const stretches = new Map();
  for (const thread of threads) {
    const key = `${engine(thread).process.instance}/${Math.floor(thread.arrived / size)}`;
    if (!stretches.has(key)) stretches.set(key, []);
    stretches.get(key).push(thread);
  }
  const all = [...stretches.values()];
  return all.some((each) => each.length > CROWD) ? all.map((each) => each[0]) : threads;
}

// Draws them; returns how many there are to each one that is drawn.
export function drawThreads(pen, threads, { x, begins, ends, color, dotted }) {
  const inside = threads.filter((thread) => thread.arrived >= begins && thread.left <= ends).sort((one, two) => one.arrived - two.arrived);
  const seen = thinned(inside, { x, begins, ends });
  const largest = Math.max(1, ...seen.map((thread) => thread.size || 1));
  pen.save();
  pen.strokeStyle = color;
  pen.fillStyle = color;
  pen.lineWidth = dotted ? 1.8 : 1.5;
  pen.setLineDash(dotted ? [2.5, 2.5] : []);
  for (const thread of seen) {
    const from = { x: x(thread.left), y: edge(thread.from, thread.to) };
    const to = { x: x(thread.arrived), y: edge(thread.to, thread.from) };
    pen.globalAlpha = dotted ? 0.75 + 0.25 * ((thread.size || 1) / largest) : 0.85;
    curve(pen, from, to);
    if (!dotted) dot(pen, to, 2.2);
  }
  pen.restore();
  return seen.length ? inside.length / seen.length : 1;
}
