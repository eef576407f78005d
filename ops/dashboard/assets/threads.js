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

// Threads of a row that would touch are left out, so that a long run is still a cloth.
function apart(threads, x, least) {
  const last = new Map();
  return threads.filter((thread) => {
    const row = thread.from.process.stage === "learner" ? thread.to : thread.from;
    const at = x(thread.arrived);
    if (at - (last.get(row) ?? -Infinity) < least) return false;
    last.set(row, at);
    return true;
  });
}

export function drawThreads(pen, threads, { x, begins, ends, color, dotted }) {
  const inside = threads.filter((thread) => thread.arrived >= begins && thread.left <= ends).sort((one, two) => one.arrived - two.arrived);
  const seen = apart(inside, x, dotted ? 5 : 9);
  const largest = Math.max(1, ...seen.map((thread) => thread.size || 1));
  const dense = Math.min(1, 80 / Math.max(1, seen.length));
  pen.save();
  pen.strokeStyle = color;
  pen.fillStyle = color;
  pen.lineWidth = dotted ? 1.3 : 1.4;
  pen.setLineDash(dotted ? [1.5, 2.5] : []);
  for (const thread of seen) {
    const from = { x: x(thread.left), y: edge(thread.from, thread.to) };
    const to = { x: x(thread.arrived), y: edge(thread.to, thread.from) };
    pen.globalAlpha = dotted ? (0.35 + 0.65 * ((thread.size || 1) / largest)) * (0.6 + 0.4 * dense) : 0.4 + 0.5 * dense;
    curve(pen, from, to);
    if (!dotted && dense > 0.5) dot(pen, to, 2.2);
  }
  pen.restore();
}
