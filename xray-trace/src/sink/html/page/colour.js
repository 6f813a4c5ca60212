// The colours of functions. The functions of one namespace or class have similar hues, at most 20
// degrees from the hue of the namespace. A name has the same colour in every view.

const colours = {
  light: 0.83,
  chroma: 0.075,
  css: {},
  known: new Map(),

  /**
   * Reads the colours of the style sheet. The page calls this again after a change of the theme.
   */
  refresh() {
    const style = getComputedStyle(document.documentElement);
    const names = ["paper", "raised", "line", "ink", "soft", "faint", "accent", "match", "bad", "warning", "ready", "waiting", "frame-ink"];
    for (const name of names) colours.css[name] = style.getPropertyValue(`--${name}`).trim();
    colours.light = Number(style.getPropertyValue("--light"));
    colours.chroma = Number(style.getPropertyValue("--chroma"));
    colours.known.clear();
  },

  of(name) {
    let colour = colours.known.get(name);
    if (!colour) {
      const space = spaceOf(name);
      const hue = (hash(space) % 360) + ((hash(name) >>> 9) % 40) - 20;
      const light = colours.light + (((hash(name) >>> 3) % 9) - 4) * 0.011;
      colour = rgb(light, colours.chroma, ((hue % 360) * Math.PI) / 180);
      colours.known.set(name, colour);
    }
    return colour;
  },
};

const bits = new Map();

/**
 * Returns a colour of the style, `#rrggbb`, as a number in the byte order of image data: red is the
 * lowest byte. The number has no opacity.
 */
colours.bits = (colour) => {
  let found = bits.get(colour);
  if (found === undefined) {
    const [red, green, blue] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
    found = (blue << 16) | (green << 8) | red;
    bits.set(colour, found);
  }
  return found;
};

colours.bitsOf = (name) => colours.bits(colours.of(name));

/**
 * Returns an OKLCH colour as `#rrggbb`, the format that a canvas accepts fastest. `hue` is in
 * radians. Colours of equal lightness in OKLCH look equally light.
 * (https://bottosson.github.io/posts/oklab/)
 */
function rgb(light, chroma, hue) {
  const [a, b] = [chroma * Math.cos(hue), chroma * Math.sin(hue)];
  const long = (light + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const middle = (light - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (light - 0.0894841775 * a - 1.291485548 * b) ** 3;
  const linear = [
    4.0767416621 * long - 3.3077115913 * middle + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * middle - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * middle + 1.707614701 * short,
  ];
  const parts = linear.map((part) => {
    const clear = Math.min(1, Math.max(0, part));
    const curved = clear <= 0.0031308 ? 12.92 * clear : 1.055 * clear ** (1 / 2.4) - 0.055;
    return Math.round(curved * 255).toString(16).padStart(2, "0");
  });
  return `#${parts.join("")}`;
}

/** Returns the namespace or the class of a name. Without one, returns the name itself. */
function spaceOf(name) {
  const plain = withoutBrackets(name);
  const cut = plain.lastIndexOf("::");
  if (cut > 0) return plain.slice(0, cut);
  return plain;
}

function hash(text) {
  let value = 2166136261;
  for (let at = 0; at < text.length; at++) value = Math.imul(value ^ text.charCodeAt(at), 16777619) >>> 0;
  return (value ^ (value >>> 15)) >>> 0;
}
