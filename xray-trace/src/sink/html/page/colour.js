// Colours of functions: those of one name space are of one hue, and a name has the same colour in every view.

const colours = {
  light: 0.83,
  chroma: 0.075,
  css: {},
  known: new Map(),

  /** Looks up what the style says; after the theme has changed. */
  refresh() {
    const style = getComputedStyle(document.documentElement);
    const names = ["paper", "raised", "line", "ink", "soft", "faint", "accent", "match", "bad", "warning", "frame-ink"];
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
      colour = `oklch(${light.toFixed(3)} ${colours.chroma} ${(hue + 360) % 360})`;
      colours.known.set(name, colour);
    }
    return colour;
  },
};

/** What a name stands in: a name space or a class; else it stands by itself. */
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
