//! A tracing policy as a file describes it: which processes it is for, and what is recorded of
//! them.

use std::time::Duration;

use sled_encoders::Capture;
use xray_trace::instr_map::{Rule, Selection};

use super::trigger_spec::{TriggerSpec, read_triggers};
use crate::{
    matching::ProcessCondition,
    parse,
    process::Follow,
    size::ByteSize,
    toml_file::{Item, Located, Mistake, Table, TomlText},
    types::{Budget, CallFilter, Duty, Filter, Mode, Overhead, Settings, compile},
};

/// The longest name of a policy.
const LONGEST_NAME: usize = 64;
/// The processes of one policy at a time, if it does not say.
const MOST_PROCESSES: u32 = 100;
/// The shortest time that a file covers.
const SHORTEST_PERIOD: Duration = Duration::from_secs(1);
/// The time that a file covers, if the policy does not say: of a stream, and of other files.
const USUAL_STREAM: Duration = Duration::from_secs(3600);
const USUAL_PERIOD: Duration = Duration::from_secs(60);
/// The least value of a size of files.
const SMALLEST_FILE: u64 = 1 << 20;
/// The size of a file, and of all files, if the policy does not say.
const USUAL_FILE: u64 = 64 << 20;
const USUAL_KEPT: u64 = 1 << 30;
/// The most rules of a selection.
const MOST_RULES: usize = 1000;

/// A policy.
#[derive(Debug, Clone)]
pub struct PolicySpec {
    /// Its name, by which everything that it does is known.
    pub name: String,
    /// The moment at which it ends, in seconds since the Unix epoch. `None`: it does not end.
    pub expires: Option<u64>,
    /// The processes that it is for.
    pub matching: Matching,
    /// What is recorded of them.
    pub trace: TraceSpec,
    /// The files that a recorder writes. `None`: none.
    pub output: Option<OutputSpec>,
    /// The moments of which a recorder writes snapshots.
    pub triggers: Vec<TriggerSpec>,
}

/// The files that a recorder writes for a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OutputSpec {
    /// The time that a file covers.
    pub every: Duration,
    /// The size in bytes after which the next file of a stream begins.
    pub file_bytes: u64,
    /// The most bytes of all its files.
    pub keep_bytes: u64,
    /// The age at which a file goes.
    pub keep_for: Option<Duration>,
}

/// The processes that a policy is for.
#[derive(Debug, Clone)]
pub struct Matching {
    /// What they have in common.
    pub condition: ProcessCondition,
    /// The most processes at a time. The oldest ones come first.
    pub max_processes: u32,
    /// The age at which a process is attached to.
    pub min_age: Duration,
}

/// What a policy records of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TraceSpec {
    /// Mode, filter and budget.
    pub settings: Settings,
    /// The functions that are on.
    pub selection: Selection,
    /// The values that are recorded of calls.
    pub capture: Capture,
    /// The size of each thread's ring in bytes. `None`: the usual one of the mode.
    pub ring_bytes: Option<u64>,
    /// The processes that are followed from a matching one.
    pub follow: Follow,
}

// === impl PolicySpec ===

impl PolicySpec {
    /// Reads a policy. Nothing outside of the text matters but the names of users.
    ///
    /// # Errors
    /// All mistakes, in the order of their places.
    pub fn parse(text: &str) -> Result<Self, Vec<Mistake>> {
        let file = TomlText::new(text);
        let mut table = file.table();
        let name = read_name(&file, &mut table);
        let expires = table.moment("expires").map(|moment| moment.value);
        let matching = match table.table("match") {
            Some(matching) => Matching::read(&file, matching),
            None => {
                file.mistake(
                    0,
                    "[match] is missing: it says which processes the policy is for",
                );
                None
            }
        };
        let trace = match table.table("trace") {
            Some(trace) => TraceSpec::read(&file, trace),
            None => {
                file.mistake(0, "[trace] is missing: it says what is recorded");
                None
            }
        };
        let mode = trace.as_ref().map(|trace| trace.settings.mode);
        let output = table.table("output");
        let output_at = output.as_ref().map(|output| output.at);
        let output = output.and_then(|output| OutputSpec::read(&file, output, mode));
        let triggers = table.items("trigger");
        let trigger_at = triggers.first().map(Item::at);
        let triggers = read_triggers(&file, triggers);
        table.finish();
        if let (Some(at), None) = (trigger_at, output_at) {
            let what = "a trigger needs [output]: its snapshots are files";
            file.mistake(at, what);
        }
        if let (Some(at), Some(trace)) = (output_at, &trace)
            && trace.follow != Follow::None
        {
            // A followed process would be in the files of its parent, and in its own.
            let what = "a policy with files follows no processes: its condition can match them";
            file.mistake(at, what);
        }
        let mistakes = file.mistakes();
        match (name, matching, trace) {
            (Some(name), Some(matching), Some(trace)) if mistakes.is_empty() => Ok(Self {
                name,
                expires,
                matching,
                trace,
                output,
                triggers,
            }),
            _ => Err(mistakes),
        }
    }
}

fn read_name(file: &TomlText<'_>, table: &mut Table<'_, '_>) -> Option<String> {
    let Some(Located { value, at }) = table.string("name") else {
        file.mistake(0, "name is missing: name = \"checkout-latency\"");
        return None;
    };
    // It becomes a folder's name, and a label of metrics.
    let is_plain = |character: char| character.is_ascii_alphanumeric() || "-_.".contains(character);
    let begins_well = value.starts_with(|first: char| first.is_ascii_alphanumeric());
    // Files with these ends are the relay's own.
    let is_taken = [".part", ".prom"].iter().any(|end| value.ends_with(end));
    if is_taken {
        file.mistake(at, "a name does not end in .part or .prom");
        return None;
    }
    if value.len() > LONGEST_NAME || !begins_well || !value.chars().all(is_plain) {
        let what = format!(
            "a name has up to {LONGEST_NAME} letters, digits, - _ and ., and begins with a letter \
             or a digit"
        );
        file.mistake(at, what);
        return None;
    }
    Some(value)
}

// === impl Matching ===

impl Matching {
    /// Reads the table `[match]`. `None` if it has a mistake.
    fn read(file: &TomlText<'_>, mut table: Table<'_, '_>) -> Option<Self> {
        let condition = ProcessCondition::read(file, &mut table);
        let max_processes = match table.integer("max_processes") {
            None => Some(MOST_PROCESSES),
            Some(Located { value, at }) => {
                let number = u32::try_from(value).ok().filter(|number| *number > 0);
                if number.is_none() {
                    file.mistake(at, "max_processes must be a number from 1 on");
                }
                number
            }
        };
        let min_age = match table.string("min_age") {
            None => Some(Duration::ZERO),
            Some(age) => file.check(age.at, parse::duration(&age.value)),
        };
        table.finish();
        Some(Self {
            condition: condition?,
            max_processes: max_processes?,
            min_age: min_age?,
        })
    }
}

// === impl OutputSpec ===

impl OutputSpec {
    /// Reads the table `[output]` of a policy with this mode. `None` if it has a mistake.
    fn read(file: &TomlText<'_>, mut table: Table<'_, '_>, mode: Option<Mode>) -> Option<Self> {
        if mode == Some(Mode::Count) {
            let what = "mode count has no files: read its calls with xrayctl count";
            file.mistake(table.at, what);
        }
        let mut time = |key: &str| {
            let text = table.string(key);
            let at = text.as_ref().map(|text| text.at);
            let time = file.parsed(text, parse::positive_duration);
            if let (Some(at), Some(time)) = (at, time)
                && time < SHORTEST_PERIOD
            {
                file.mistake(at, format!("{key} must be {SHORTEST_PERIOD:?} or more"));
            }
            time
        };
        let (every, keep_for) = (time("every"), time("keep_for"));
        let mut size = |key: &str, usual: u64| {
            let text = table.string(key);
            let at = text.as_ref().map(|text| text.at);
            let bytes = file.parsed(text, |text| {
                text.parse::<ByteSize>().map_err(|error| error.to_string())
            });
            let bytes = bytes.map_or(usual, ByteSize::bytes);
            if let Some(at) = at
                && bytes < SMALLEST_FILE
            {
                file.mistake(at, format!("{key} must be 1MiB or more"));
            }
            bytes
        };
        let file_bytes = size("max_file", USUAL_FILE);
        let keep_bytes = size("keep", USUAL_KEPT);
        table.finish();
        let usual = match mode {
            Some(Mode::Stream) => USUAL_STREAM,
            _ => USUAL_PERIOD,
        };
        Some(Self {
            every: every.unwrap_or(usual),
            file_bytes,
            keep_bytes,
            keep_for,
        })
    }
}

// === impl TraceSpec ===

impl TraceSpec {
    fn read(file: &TomlText<'_>, mut table: Table<'_, '_>) -> Option<Self> {
        let at = table.at;
        let mode = file.parsed(table.string("mode"), parse::mode);
        let has_rules = table.has("enable");
        let include = rules(file, table.items("enable"));
        if !has_rules {
            file.mistake(
                at,
                "enable is missing: enable = [\"checkout::*\"], or \"*\" for all",
            );
        }
        let exclude = rules(file, table.items("except"));
        let selection = Selection { include, exclude };
        let arguments = table.integer("arguments");
        let results = table
            .boolean("results")
            .is_some_and(|results| results.value);
        let capture = capture(file, arguments, results);
        let budget = budget(file, &mut table);
        let filter = Filter {
            calls: calls(file, &mut table),
            ..Filter::default()
        };
        let ring_bytes = file.parsed(table.string("ring_size"), parse::ring_size);
        let follow = file.parsed(table.string("follow"), parse::follow);
        table.finish();
        let filter_fits = file.check(at, filter.check().map_err(|it| it.message));
        let compiles = file.check(at, compile(&selection).map_err(|it| it.message));
        let settings = Settings {
            mode: mode.unwrap_or(Mode::Profile),
            filter,
            budget: budget?,
        };
        let Settings {
            mode,
            filter,
            budget,
        } = &settings;
        let fits = budget.check().and_then(|()| budget.suits(*mode, filter));
        let fits = file.check(at, fits.map_err(|it| it.message));
        filter_fits.and(compiles).and(fits)?;
        Some(Self {
            settings,
            selection,
            capture: capture?,
            ring_bytes,
            follow: follow.unwrap_or(Follow::None),
        })
    }
}

/// The rules of a selection: globs of names, or tables with the kind of the rule.
fn rules(file: &TomlText<'_>, items: Vec<Item<'_, '_>>) -> Vec<Rule> {
    if let Some(item) = items.get(MOST_RULES) {
        file.mistake(item.at(), format!("there are more than {MOST_RULES} rules"));
    }
    let rules = items.into_iter().take(MOST_RULES).filter_map(|item| {
        let mut table = match item {
            Item::Text(text) if text.value == "*" => return Some((text.at, Rule::All)),
            Item::Text(text) => {
                let at = text.at;
                return Some((at, Rule::Glob(pattern(file, text)?)));
            }
            Item::Table(table) => table,
        };
        let at = table.at;
        let mut found = Vec::new();
        let mut take = |key: &str, rule: fn(String) -> Rule| {
            let text = table.string(key).and_then(|text| pattern(file, text));
            found.extend(text.map(rule));
        };
        take("function", Rule::Function);
        take("glob", Rule::Glob);
        take("regex", Rule::Regex);
        take("module", Rule::Module);
        take("source", Rule::Source);
        table.finish();
        if found.len() != 1 {
            file.mistake(
                at,
                "a rule has one of function, glob, regex, module and source",
            );
        }
        found.pop().map(|rule| (at, rule))
    });
    // Each by itself, so that its mistake has its place.
    let right = rules.filter_map(|(at, rule)| {
        let alone = Selection {
            include: vec![rule.clone()],
            exclude: Vec::new(),
        };
        let compiled = compile(&alone).map_err(|refusal| refusal.message);
        file.check(at, compiled).map(|_| rule)
    });
    right.collect()
}

fn pattern(file: &TomlText<'_>, text: Located<String>) -> Option<String> {
    file.check(text.at, parse::pattern(&text.value))
}

fn capture(file: &TomlText<'_>, arguments: Option<Located<i64>>, results: bool) -> Option<Capture> {
    let capture = match results {
        true => Capture::NONE.with_result(),
        false => Capture::NONE,
    };
    let Some(Located { value, at }) = arguments else {
        return Some(capture);
    };
    let count = u32::try_from(value).ok();
    let with = count.and_then(|count| capture.with_arguments(count));
    if with.is_none() {
        let most = Capture::MOST_ARGUMENTS;
        file.mistake(at, format!("arguments must be a number from 0 to {most}"));
    }
    with
}

fn budget(file: &TomlText<'_>, table: &mut Table<'_, '_>) -> Option<Budget> {
    let overhead = table.string("max_overhead");
    let duty = table.string("duty");
    let keep = table.strings("keep");
    if let (Some(_), Some(duty)) = (&overhead, &duty) {
        file.mistake(duty.at, "max_overhead and duty exclude each other");
    }
    if let (None, Some(kept)) = (&overhead, keep.first()) {
        file.mistake(kept.at, "keep needs max_overhead");
    }
    let is_given = (overhead.is_some(), duty.is_some());
    let ppm = file.parsed(overhead, parse::percent);
    let cycle = file.parsed(duty, parse::duty);
    let keep = keep.into_iter().map(|kept| kept.value).collect();
    match (is_given, ppm, cycle) {
        ((false, false), ..) => Some(Budget::None),
        ((true, false), Some(ppm), _) => Some(Budget::Overhead(Overhead { ppm, keep })),
        ((false, true), _, Some((on, every))) => Some(Budget::Duty(Duty { on, every })),
        _ => None,
    }
}

fn calls(file: &TomlText<'_>, table: &mut Table<'_, '_>) -> CallFilter {
    let texts = |texts: Vec<Located<String>>| texts.into_iter().map(|it| it.value).collect();
    let shortest = file.parsed(table.string("min_duration"), parse::positive_duration);
    let mut number = |key: &str| {
        let number = table.integer(key)?;
        let read = u32::try_from(number.value)
            .ok()
            .filter(|number| *number > 0);
        if read.is_none() {
            file.mistake(number.at, format!("{key} must be a number from 1 on"));
        }
        read
    };
    let (max_depth, one_in) = (number("max_depth"), number("one_in"));
    CallFilter {
        shortest: shortest.unwrap_or(Duration::ZERO),
        max_depth: max_depth.unwrap_or(0),
        one_in: one_in.unwrap_or(0),
        inside: texts(table.strings("inside")),
        threads: texts(table.strings("threads")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"
        name = "checkout-latency"
        expires = 2027-01-31T00:00:00Z

        [match]
        unit = "checkout@*.service"
        exe = ["/opt/checkout/**"]
        max_processes = 20
        min_age = "500ms"

        [trace]
        mode = "stream"
        enable = ["checkout::*", { module = "libpay.so.*" }, { regex = "^pay" }]
        except = [{ function = "checkout::hot" }]
        arguments = 2
        results = true
        max_overhead = "2%"
        keep = ["checkout::handle"]
        ring_size = "4MiB"
        follow = "none"

        [output]
        every = "10m"
        max_file = "16MiB"
        keep = "2GiB"
        keep_for = "168h"

        [[trigger]]
        when = "duration(checkout::handle) > 100ms"
    "#;

    fn mistakes(text: &str) -> Vec<String> {
        let mistakes = PolicySpec::parse(text).unwrap_err();
        mistakes.iter().map(Mistake::to_string).collect()
    }

    #[test]
    fn each_pattern_has_its_place() {
        let text = "name = \"x\"\n[match]\nuser = \"0\"\n[trace]\nmax_overhead = \"200%\"\n\
                    enable = [\n{ regex = \"(\" },\n\"a[\",\n{ regex = \"[z\" }]\n";
        let lines: Vec<usize> = PolicySpec::parse(text)
            .unwrap_err()
            .iter()
            .map(|it| it.line)
            .collect();
        assert_eq!(lines, [5, 7, 8, 9]);
    }

    #[test]
    fn a_file_becomes_a_policy() {
        let policy = PolicySpec::parse(WHOLE).unwrap();
        assert_eq!(policy.name, "checkout-latency");
        assert_eq!(policy.expires, Some(1_801_353_600));
        assert_eq!(policy.matching.max_processes, 20);
        assert_eq!(policy.matching.min_age, Duration::from_millis(500));
        let TraceSpec {
            settings,
            selection,
            capture,
            ring_bytes,
            follow,
        } = policy.trace;
        assert_eq!(settings.mode, Mode::Stream);
        let kept = Overhead {
            ppm: 20_000,
            keep: vec!["checkout::handle".to_owned()],
        };
        assert_eq!(settings.budget, Budget::Overhead(kept));
        let include = [
            Rule::Glob("checkout::*".to_owned()),
            Rule::Module("libpay.so.*".to_owned()),
            Rule::Regex("^pay".to_owned()),
        ];
        assert_eq!(selection.include, include);
        assert_eq!(
            selection.exclude,
            [Rule::Function("checkout::hot".to_owned())]
        );
        assert_eq!((capture.arguments(), capture.has_result()), (2, true));
        assert_eq!((ring_bytes, follow), (Some(4 << 20), Follow::None));
        let output = OutputSpec {
            every: Duration::from_secs(600),
            file_bytes: 16 << 20,
            keep_bytes: 2 << 30,
            keep_for: Some(Duration::from_secs(7 * 24 * 3600)),
        };
        assert_eq!(policy.output, Some(output));
        assert_eq!(policy.triggers.len(), 1);
        let least = "name = \"x\"\n[match]\nuser = \"0\"\n[trace]\nenable = \"*\"\n";
        let policy = PolicySpec::parse(least).unwrap();
        assert_eq!(policy.trace.settings.mode, Mode::Profile);
        assert_eq!(policy.trace.selection.include, [Rule::All]);
        assert_eq!(policy.expires, None);
    }

    /// Each kind of mistake has its place, and hides no other one.
    #[test]
    fn all_mistakes_are_told_at_once() {
        let text = r#"name = "../x"
expires = 2027-01-31
expire = 1
[match]
units = "a"
exe = ["/a[", ""]
user = "no-such-user-here"
max_processes = 0
min_age = "soon"
[trace]
mode = "fast"
enable = [{ glob = "a", regex = "b" }, 7, { name = "x" }]
arguments = 9
max_overhead = "200%"
duty = "1s/1s"
one_in = 0
ring_size = "3MiB"
follow = "everyone"
min_duration = 5
[output]
every = "10ms"
keep = "1KiB"
format = "csv"
[trigger]
"#;
        let found = mistakes(text);
        let starts = [
            "line 1, column 8: a name has up to 64 letters",
            "line 2, column 11: expires must be a moment with its time zone",
            "line 3, column 1: unknown key \"expire\"; did you mean expires?",
            "line 5, column 1: unknown key \"units\"; did you mean unit?",
            "line 6, column 8: ",
            "line 6, column 15: expected a name or a pattern, not an empty text",
            "line 7, column 8: there is no user \"no-such-user-here\"",
            "line 8, column 17: max_processes must be a number from 1 on",
            "line 9, column 11: ",
            "line 11, column 8: expected flight, stream, profile or count",
            "line 12, column 11: a rule has one of function, glob, regex, module and source",
            "line 12, column 40: enable must have texts in quotation marks, or tables",
            "line 12, column 43: a rule has one of function, glob, regex, module and source",
            "line 12, column 45: unknown key \"name\"",
            "line 13, column 13: arguments must be a number from 0 to 6",
            "line 14, column 16: expected a percentage from 0.01% to 100%",
            "line 15, column 8: expected TIME/CYCLE",
            "line 15, column 8: max_overhead and duty exclude each other",
            "line 16, column 10: one_in must be a number from 1 on",
            "line 17, column 13: expected a power of two from 64KiB to 1GiB",
            "line 18, column 10: expected none, fork, exec or all",
            "line 19, column 16: min_duration must be a text in quotation marks",
            "line 21, column 9: every must be 1s or more",
            "line 22, column 8: keep must be 1MiB or more",
            "line 23, column 1: unknown key \"format\"",
            "line 24, column 1: when is missing",
        ];
        for start in starts {
            let is_there = found.iter().any(|found| found.starts_with(start));
            assert!(is_there, "{start}: {found:#?}");
        }
        assert_eq!(found.len(), starts.len(), "{found:#?}");
        let rest = "[match]\nuser = \"0\"\n[trace]\nenable = \"*\"\n";
        for (text, expected) in [
            ("", "[match] is missing"),
            (
                &rest.replace("user = \"0\"", "")[..],
                "[match] has no condition",
            ),
            (&format!("name = 7\n{rest}"), "name must be a text"),
            (
                &format!("name = \"x\"\n{rest}mode = \"count\"\nmax_overhead = \"2%\"\n"),
                "mode count",
            ),
            (
                &format!("name = \"x\"\n{rest}max_overhead = \"2%\"\none_in = 3\n"),
                "--module",
            ),
            (
                &format!("name = \"x\"\n{rest}keep = \"a\"\n"),
                "keep needs max_overhead",
            ),
            (
                &format!(
                    "name = \"x\"\n{}",
                    rest.replace("\"*\"", "{ regex = \"(\" }")
                ),
                "regular",
            ),
            (
                &format!("name = \"x\"\n{rest}[[trigger]]\nwhen = \"death\"\n"),
                "line 6, column 1: a trigger needs [output]",
            ),
            ("name = \"x\"\n[match\n", "line 2"),
        ] {
            let found = mistakes(text).join("\n");
            assert!(found.contains(expected), "{text}: {found}");
        }
    }
}
