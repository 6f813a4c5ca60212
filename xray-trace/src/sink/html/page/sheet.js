// Draws calls and slices that are narrower than 1.5 pixels, as one bar for each pixel of a lane.
// The height of a bar is the busy share of the pixel's time. A sheet can have tens of thousands of
// bars. A canvas is slow at that number, so the sheet paints the bars into an image.

class Sheet {
  constructor(width, height, span) {
    this.width = width;
    this.height = height;
    /** The time of one pixel, in nanoseconds. */
    this.span = span;
    this.image = new ImageData(width, Math.max(1, height));
    this.pixels = new Uint32Array(this.image.data.buffer);
  }

  /** Returns an empty lane. */
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
    /**
     * The function of each pixel, as its row + 1; 0 for a function without a row; -1 for an empty
     * pixel.
     */
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
