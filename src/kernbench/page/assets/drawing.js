// Draws lanes on a canvas. What is narrower than a pixel is drawn by how much of the pixel it
// covers, so that the work depends on the width of the canvas and hardly on the number of slices.

const MOST_LOOKED_AT = 24; // of the slices in one pixel, to find the longest

class Pen {
  // view: {from, to} in ps; left, width: where it is on the canvas
  constructor(context, view, left, width) {
    this.context = context;
    this.view = view;
    this.left = left;
    this.width = width;
    this.perPixel = (view.to - view.from) / width;
  }

  x(ps) {
    return this.left + (ps - this.view.from) / this.perPixel;
  }

  // draw(i, j, x, width, share): slices i to j, share: how much of the width they cover
  eachVisible(lane, draw) {
    const { from, to } = this.view;
    let i = firstAbove(lane.reach, from);
    while (i < lane.count && lane.start[i] < to) {
      const [x, end] = [this.x(lane.start[i]), this.x(lane.end[i])];
      if (end - x >= 1) {
        const begin = Math.max(x, this.left);
        draw(i, i + 1, begin, Math.min(end, this.left + this.width) - begin, 1);
        i++;
        continue;
      }
      const pixel = Math.floor(Math.max(x, this.left));
      const untilPs = from + (pixel + 1 - this.left) * this.perPixel;
      const j = Math.max(i + 1, firstAbove(lane.start, untilPs, i, lane.count));
      const last = this.x(lane.end[j - 1]) - this.x(lane.start[j - 1]) >= 1 && j - 1 > i ? j - 1 : j;
      draw(i, last, pixel, 1, Math.min(1, (lane.busy[last] - lane.busy[i]) / this.perPixel));
      i = last;
    }
  }

  longest(lane, i, j) {
    const step = Math.max(1, Math.floor((j - i) / MOST_LOOKED_AT));
    let best = i;
    for (let k = i; k < j; k += step) {
      if (lane.end[k] - lane.start[k] > lane.end[best] - lane.start[best]) best = k;
    }
    return best;
  }

  fill(color, x, y, width, height, share = 1) {
    this.context.globalAlpha = share >= 1 ? 1 : 0.2 + 0.8 * share;
    this.context.fillStyle = color;
    this.context.fillRect(x, y, width, height);
    this.context.globalAlpha = 1;
  }

  // Slices that are wide enough are set apart, and named.
  slice(color, x, y, width, height, share, label) {
    this.fill(color, x, y, width > 3 ? width - 0.7 : width, height, share);
    if (label && width > 34 && height >= 11) this.label(label, x + 4, y, width - 8, height, textOn(color));
  }

  label(text, x, y, width, height, color) {
    const room = Math.floor(width / 6.3);
    if (room < 3) return;
    this.context.fillStyle = color;
    this.context.fillText(text.length > room ? `${text.slice(0, room - 1)}…` : text, x, y + height / 2 + 0.5);
  }

  // The time in which a rank waits for others in a collective.
  hatch(pattern, x, y, width, height) {
    this.context.fillStyle = pattern;
    this.context.fillRect(x, y, width, height);
  }
}

function hatching(context, color) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = 6;
  const pen = tile.getContext("2d");
  pen.strokeStyle = color;
  pen.lineWidth = 1.6;
  for (const at of [-6, 0, 6]) {
    pen.beginPath();
    pen.moveTo(at, 6);
    pen.lineTo(at + 6, 0);
    pen.stroke();
  }
  return context.createPattern(tile, "repeat");
}

// Moments at which an axis has lines: at most one per 110 pixels.
function ticks(view, width) {
  const least = ((view.to - view.from) / width) * 110;
  const power = 10 ** Math.floor(Math.log10(least));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((factor) => factor >= least);
  const places = [];
  for (let at = Math.ceil(view.from / step) * step; at <= view.to; at += step) places.push(at);
  return { step, at: places };
}
