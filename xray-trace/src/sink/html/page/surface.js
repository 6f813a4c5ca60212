// A canvas with the resolution of the screen. It combines all requests to draw within a screen
// frame into one drawing. `handle` passes the positions of the pointer to a view.

const FRAME_FONT = '11px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace';
const TEXT_FONT = '11px system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif';

class Surface {
  constructor(canvas, draw) {
    this.canvas = canvas;
    this.pen = canvas.getContext("2d", { alpha: false });
    this.draw = draw;
    this.width = 0;
    this.height = 0;
    this.waiting = false;
    /** The duration of the latest drawing, in milliseconds. */
    this.took = 0;
    this.letter = 0;
    new ResizeObserver(() => this.resize()).observe(canvas);
  }

  resize() {
    const scale = window.devicePixelRatio || 1;
    this.width = this.canvas.clientWidth;
    this.height = this.canvas.clientHeight;
    this.canvas.width = Math.max(1, Math.round(this.width * scale));
    this.canvas.height = Math.max(1, Math.round(this.height * scale));
    // A change of its size clears the canvas.
    this.now();
  }

  /** Schedules a drawing for the next frame of the screen. */
  soon() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.now();
    });
  }

  now() {
    if (!this.width || !this.height) return;
    const began = performance.now();
    const scale = window.devicePixelRatio || 1;
    const pen = this.pen;
    pen.setTransform(scale, 0, 0, scale, 0, 0);
    pen.fillStyle = colours.css.paper;
    pen.fillRect(0, 0, this.width, this.height);
    pen.textBaseline = "middle";
    pen.font = FRAME_FONT;
    // All letters of this font have the same width.
    this.letter = pen.measureText("m").width;
    this.draw(pen, this.width, this.height);
    this.took = performance.now() - began;
  }

  /**
   * Draws a name into a box. If the box is too narrow, shortens the name. If fewer than 3 letters
   * fit, draws nothing.
   */
  label(name, left, middle, width) {
    const letters = Math.floor((width - 6) / this.letter);
    if (letters < 3) return;
    let text = name;
    if (text.length > letters) text = format.bare(name);
    if (text.length > letters) text = `${text.slice(0, letters - 1)}…`;
    this.pen.fillText(text, left + 3, middle);
  }
}

/**
 * Connects the pointer and the wheel to a view. The flame graph and the timeline react alike.
 * `view` has the methods that this function calls. Keys are handled in `App.key`.
 */
function handle(canvas, view) {
  let held = null;
  const place = (event) => {
    const box = canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  };
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    const [x, y] = place(event);
    held = { x, y, fromX: x, fromY: y, moved: false, spans: event.shiftKey };
    canvas.setPointerCapture(event.pointerId);
    tip.hide();
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = place(event);
    if (!held) {
      view.point(x, y, event);
      return;
    }
    if (Math.abs(x - held.fromX) + Math.abs(y - held.fromY) > 3) held.moved = true;
    if (!held.moved) return;
    if (held.spans) view.span(held.fromX, x);
    else view.move(held.x - x, held.y - y);
    held.x = x;
    held.y = y;
  });
  const release = (event) => {
    if (!held) return;
    const [x, y] = place(event);
    const was = held;
    held = null;
    if (was.moved && was.spans) view.zoomToSpan(was.fromX, x);
    else if (!was.moved && event.type === "pointerup") view.click(x, y);
  };
  canvas.addEventListener("pointerup", release);
  canvas.addEventListener("pointercancel", release);
  canvas.addEventListener("dblclick", (event) => view.doubleClick(...place(event)));
  canvas.addEventListener("pointerleave", () => {
    tip.hide();
    view.point(-1, -1, null);
  });
  canvas.addEventListener(
    "wheel",
    (event) => {
      event.preventDefault();
      tip.hide();
      const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 120 : 1;
      const [across, down] = [event.deltaX * unit, event.deltaY * unit];
      const [x, y] = place(event);
      if (event.shiftKey) view.move(0, down || across);
      else if (Math.abs(across) > Math.abs(down)) view.move(across, 0);
      else view.zoom(Math.exp(Math.max(-240, Math.min(240, down)) * 0.0022), x, y);
    },
    { passive: false },
  );
}

/** The tooltip of the item under the pointer. */
const tip = {
  show(event, content) {
    const box = document.getElementById("tip");
    box.replaceChildren(...content);
    box.hidden = false;
    const { offsetWidth: width, offsetHeight: height } = box;
    const right = event.clientX + 16 + width > window.innerWidth;
    const below = event.clientY + 18 + height > window.innerHeight;
    box.style.left = `${Math.max(8, right ? event.clientX - width - 12 : event.clientX + 16)}px`;
    box.style.top = `${Math.max(8, below ? event.clientY - height - 12 : event.clientY + 18)}px`;
  },
  hide() {
    document.getElementById("tip").hidden = true;
  },
};

/** Returns a list of pairs of a label and a value. */
function numbers(pairs) {
  const list = element("dl");
  for (const [what, number] of pairs) list.append(element("dt", "", what), element("dd", "", number));
  return list;
}
