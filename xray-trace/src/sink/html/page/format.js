// Formats numbers and names for display, with the words that xrayctl uses.

const format = {
  /** False if the rate of the time counter is unknown. Times are then in ticks of the counter. */
  calibrated: true,

  count(number) {
    return Math.round(number).toLocaleString("en-US");
  },

  counted(number, noun) {
    return `${format.count(number)} ${noun}${number === 1 ? "" : "s"}`;
  },

  /**
   * Returns a duration with four significant digits: `7 ns`, `1.234 µs`, `56.78 ms`. `ns` is in
   * nanoseconds.
   */
  time(ns) {
    if (Number.isNaN(ns)) return "–";
    if (!format.calibrated) return format.counted(ns, "tick");
    const units = ["ns", "µs", "ms", "s"];
    let unit = 0;
    let number = ns;
    while (unit < 3 && Number(number.toPrecision(4)) >= 1000) {
      number /= 1000;
      unit++;
    }
    number = Number(number.toPrecision(4));
    const places = unit === 0 ? 0 : number < 10 ? 3 : number < 100 ? 2 : number < 1000 ? 1 : 0;
    return `${number.toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places })} ${units[unit]}`;
  },

  /**
   * Returns a point in time with enough decimal places to distinguish times that are `step` apart.
   * `ns` and `step` are in nanoseconds.
   */
  moment(ns, step) {
    if (!format.calibrated) return format.count(ns);
    const [unit, worth] = ns >= 1e9 || step >= 1e8 ? ["s", 1e9] : ns >= 1e6 || step >= 1e5 ? ["ms", 1e6] : ns >= 1e3 || step >= 100 ? ["µs", 1e3] : ["ns", 1];
    const places = Math.max(0, Math.min(9, Math.ceil(Math.log10(worth / Math.max(step, 1)))));
    return `${(ns / worth).toLocaleString("en-US", { minimumFractionDigits: places, maximumFractionDigits: places })} ${unit}`;
  },

  /** Returns a time in whole nanoseconds, as a value of `--since` and `--until`. */
  option(ns) {
    return `${Math.max(0, Math.floor(ns))}ns`;
  },

  share(part, whole) {
    if (!(whole > 0)) return "–";
    const percent = (100 * part) / whole;
    if (percent > 0 && percent < 0.01) return "< 0.01 %";
    return `${percent.toFixed(percent < 10 ? 2 : 1)} %`;
  },

  /**
   * Returns a name without its parameters, its template arguments, and the namespaces and classes
   * around it. Views use it where a full name does not fit.
   */
  bare(name) {
    const known = bareNames.get(name);
    if (known !== undefined) return known;
    const bare = last(withoutBrackets(name)) || name;
    bareNames.set(name, bare);
    return bare;
  },
};

const bareNames = new Map();

function last(path) {
  const words = path.trim().split(" ");
  const parts = words[words.length - 1].split("::").filter(Boolean);
  return parts.slice(-1)[0];
}

/**
 * Returns the part of a name that is outside of brackets and before the parameters. Names with
 * `operator`, such as `operator()` and `operator<`, and names like `<T as U>::f` lose only a
 * leading `<…>::`, and the text from the first `(` if the name ends with `)`.
 */
function withoutBrackets(name) {
  if (name.includes("operator") || name.startsWith("<")) return name.replace(/^<.*>::/, "").replace(/\(.*\)$/, "");
  let depth = 0;
  let kept = "";
  for (const letter of name) {
    if ("(<[{".includes(letter)) {
      if (letter === "(" && depth === 0 && kept && !name.startsWith("(anonymous", kept.length)) break;
      depth++;
    } else if (")>]}".includes(letter)) depth = Math.max(0, depth - 1);
    else if (depth === 0) kept += letter;
  }
  return kept;
}

/**
 * Returns a new element with a class and with texts or elements in it. Texts are never parsed as
 * markup.
 */
function element(tag, kind, ...inner) {
  const made = document.createElement(tag);
  if (kind) made.className = kind;
  made.append(...inner);
  return made;
}
