// A canvas that is as sharp as the screen, is drawn once for a frame of it, and tells where the pointer is.

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
    /** How long the latest drawing took, in milliseconds. */
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
    // A canvas that has another size is empty.
    this.now();
  }

  /** Draws with the next frame of the screen. */
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
    // All letters of this font are as wide.
    this.letter = pen.measureText("m").width;
    this.draw(pen, this.width, this.height);
    this.took = performance.now() - began;
  }

  /** A name into a box, as much of it as there is room for. */
  label(name, left, middle, width) {
    const letters = Math.floor((width - 6) / this.letter);
    if (letters < 3) return;
    let text = name;
    if (text.length > letters) text = format.bare(name);
    if (text.length > letters) text = `${text.slice(0, letters - 1)}…`;
    this.pen.fillText(text, left + 3, middle);
  }
}

/** What the pointer, the wheel and keys do to a view: both drawings are moved alike. `view` has the methods that are called here. */
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

/** What is told of the thing under the pointer. */
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

/** Pairs of words and numbers. */
function numbers(pairs) {
  const list = element("dl");
  for (const [what, number] of pairs) list.append(element("dt", "", what), element("dd", "", number));
  return list;
}
