// What is narrower than a pixel, pixel by pixel: bars as high as their share of a pixel's time. There can be tens of thousands, for which a canvas is
// slow, so they are painted into an image.

class Sheet {
  constructor(width, height, span) {
    this.width = width;
    this.height = height;
    /** How much time a pixel is. */
    this.span = span;
    this.image = new ImageData(width, Math.max(1, height));
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** A lane that nothing is in yet. */
  lane() {
    return new Thin(this);
  }

  put(pen, left, top) {
    const canvas = new OffscreenCanvas(this.image.width, this.image.height);
    canvas.getContext("2d").putImageData(this.image, 0, 0);
    pen.imageSmoothingEnabled = false;
    pen.drawImage(canvas, left, top);
  }
}

class Thin {
  constructor(sheet) {
    this.sheet = sheet;
    this.span = sheet.span;
    this.time = new Float64Array(sheet.width);
    /** A function, as its row + 1; -1 where there is nothing. */
    this.what = new Int32Array(sheet.width).fill(-1);
    this.marked = new Uint8Array(sheet.width);
  }

  add(pixel, time, what, marked) {
    if (pixel >= this.what.length) return;
    this.time[pixel] += time;
    if (this.what[pixel] < 0 || (marked && !this.marked[pixel])) this.what[pixel] = what;
    if (marked) this.marked[pixel] = 1;
  }

  paint(top, nameOf, marking) {
    const { pixels, width, height } = this.sheet;
    const begin = Math.round(top);
    for (let x = 0; x < width; x++) {
      const row = this.what[x] - 1;
      if (row < -1) continue;
      const marked = this.marked[x];
      const colour = marked ? colours.bits(colours.css.match) : row < 0 ? colours.bits(colours.css.faint) : colours.bitsOf(nameOf(row));
      const [wash, solid] = marking && !marked ? [26, 71] : [77, 255];
      const high = Math.max(2, Math.round(Math.min(1, this.time[x] / this.span) * (LANE - 2)));
      for (let y = Math.max(0, begin); y < Math.min(height, begin + LANE - 1); y++) {
        const alpha = y >= begin + LANE - 1 - high ? solid : wash;
        pixels[y * width + x] = ((alpha << 24) | colour) >>> 0;
      }
    }
  }
}
