//! Callgrind's profile, as `callgrind_annotate` and KCachegrind read it. It has the calls and the
//! self time of each function, and the calls and the inclusive time of each pair of caller and
//! callee.
//!
//! The inclusive time of a call counts only if its function is not already open further out. So
//! recursion does not make a function cost more than the elapsed time. Readers take a function's
//! inclusive time from its callers, so outermost calls have a caller, too: [`OUTSIDE`].
//! (<https://valgrind.org/docs/manual/cl-format.html>, version 1 of the format.)

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::left_out::LeftOut;
use super::text::Text;
use super::{ProfileSink, Report, Sink};
use crate::analysis::{Step, Steps};
use crate::model::{FunctionId, Profile, Trace, Visit};

/// Callgrind's profile.
#[derive(Debug, Clone, Copy)]
pub struct Callgrind;

/// The caller of outermost calls.
const OUTSIDE: &str = "(outside)";

/// The costs by function; `None` is [`OUTSIDE`].
type Costs = BTreeMap<Option<FunctionId>, Cost>;

/// The calls and the time of a function, and of its callees.
#[derive(Debug, Default)]
struct Cost {
    calls: u64,
    self_ns: u64,
    callees: BTreeMap<FunctionId, Callee>,
}

/// The calls of one function from another.
#[derive(Debug, Default)]
struct Callee {
    calls: u64,
    inclusive_ns: u64,
}

// === impl Callgrind ===

impl Sink for Callgrind {
    fn name(&self) -> &'static str {
        "callgrind"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["callgrind"]
    }

    fn about(&self) -> &'static str {
        "self time and calls by caller, for callgrind_annotate and KCachegrind"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let (mut report, mut left_out) = (Report::default(), LeftOut::default());
        let mut costs = Costs::new();
        for mut steps in Steps::of_threads(trace) {
            // How often each function is open, and the open functions, outermost first.
            let mut open = BTreeMap::<FunctionId, u64>::new();
            let mut stack = Vec::new();
            for step in &mut steps {
                left_out.see(&step);
                match step {
                    Step::Enter(entered) => {
                        report.calls += 1;
                        stack.push(entered.function);
                        *open.entry(entered.function).or_default() += 1;
                    }
                    Step::Leave(call) => {
                        let function = call.open.function;
                        stack.pop();
                        let recursive = open.get_mut(&function).is_some_and(|count| {
                            *count -= 1;
                            *count > 0
                        });
                        let inclusive_ns = if recursive { 0 } else { call.duration_ns() };
                        let callee = Callee {
                            calls: 1,
                            inclusive_ns,
                        };
                        add(
                            &mut costs,
                            stack.last().copied(),
                            function,
                            callee,
                            call.self_ns,
                        );
                    }
                    Step::Data(_) | Step::Lost { .. } => {}
                }
            }
            report.leave_out_of_steps(&steps);
        }
        profile(trace, &costs, &mut Text::new(output))?;
        left_out.tell(&mut report);
        report.leave_out_unplaced(trace);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }

    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        Some(self)
    }
}

impl ProfileSink for Callgrind {
    fn write(&self, sums: &Profile, output: &mut dyn Write) -> io::Result<Report> {
        let (stacks, totals) = (sums.stacks(), sums.totals_ns());
        let mut costs = Costs::new();
        let mut open = BTreeMap::<FunctionId, u64>::new();
        sums.walk(|step| match step {
            Visit::Enter(at) => *open.entry(stacks[at].function).or_default() += 1,
            Visit::Leave(at) => {
                let stack = &stacks[at];
                let count = open.entry(stack.function).or_default();
                *count -= 1;
                let inclusive_ns = if *count > 0 { 0 } else { totals[at] };
                let caller = stack.caller.map(|caller| stacks[caller].function);
                let callee = Callee {
                    calls: stack.calls,
                    inclusive_ns,
                };
                add(&mut costs, caller, stack.function, callee, stack.self_ns);
            }
        });
        profile(sums.tables(), &costs, &mut Text::new(output))?;
        Ok(Report::of_profile(sums))
    }
}

/// Adds calls of a function, and their time.
fn add(
    costs: &mut Costs,
    caller: Option<FunctionId>,
    function: FunctionId,
    added: Callee,
    self_ns: u64,
) {
    let cost = costs.entry(Some(function)).or_default();
    cost.calls = cost.calls.saturating_add(added.calls);
    cost.self_ns = cost.self_ns.saturating_add(self_ns);
    let callees = &mut costs.entry(caller).or_default().callees;
    let callee = callees.entry(function).or_default();
    callee.calls = callee.calls.saturating_add(added.calls);
    callee.inclusive_ns = callee.inclusive_ns.saturating_add(added.inclusive_ns);
}

fn profile(trace: &Trace, costs: &Costs, text: &mut Text<'_>) -> io::Result<()> {
    text.put("# callgrind format\nversion: 1\ncreator: xrayctl\n");
    for process in trace.processes() {
        text.put("cmd: ");
        line(text, &process.executable);
    }
    text.put("positions: line\nevents: ns Calls\nsummary: ");
    let total = |of: fn(&Cost) -> u64| costs.values().map(of).fold(0, u64::saturating_add);
    text.number(total(|cost| cost.self_ns));
    text.put(" ");
    text.number(total(|cost| cost.calls));
    text.put("\n");
    for (function, cost) in costs {
        text.put("\n");
        position(text, trace, "", *function);
        number_line(
            text,
            &[source_line(trace, *function), cost.self_ns, cost.calls],
        );
        for (callee, calls) in &cost.callees {
            position(text, trace, "c", Some(*callee));
            text.put("calls=");
            number_line(text, &[calls.calls, source_line(trace, Some(*callee))]);
            // The place of the call in the caller is unknown.
            let own = source_line(trace, *function);
            number_line(text, &[own, calls.inclusive_ns, calls.calls]);
        }
        text.pass()?;
    }
    text.finish()
}

/// The three lines that name a function: object, file and function. The keys of a callee begin with
/// `c`.
fn position(text: &mut Text<'_>, trace: &Trace, c: &str, id: Option<FunctionId>) {
    let function = id.and_then(|id| trace.function(id));
    let module = function.and_then(|function| trace.module(function.module));
    let source = function.and_then(|function| function.source.as_ref());
    let file = if c.is_empty() { "fl" } else { "cfi" };
    for (key, name) in [
        ("ob", module.map_or("???", |module| module.path.as_str())),
        (file, source.map_or("???", |source| source.file.as_str())),
        (
            "fn",
            &id.map_or(OUTSIDE.into(), |id| trace.function_name(id)),
        ),
    ] {
        if key != "cfi" {
            text.put(c);
        }
        text.put(key);
        text.put("=");
        // Two functions can have the same name, but never the same id.
        if key == "fn" {
            text.put("(");
            text.number(id.map_or(0, |id| u64::from(id.0) + 1));
            text.put(") ");
        }
        line(text, name);
    }
}

fn source_line(trace: &Trace, id: Option<FunctionId>) -> u64 {
    let source = id.and_then(|id| trace.function(id)?.source.as_ref());
    source.map_or(0, |source| source.line.into())
}

fn number_line(text: &mut Text<'_>, numbers: &[u64]) {
    for (at, number) in numbers.iter().enumerate() {
        text.put(if at == 0 { "" } else { " " });
        text.number(*number);
    }
    text.put("\n");
}

/// A text up to the end of the line.
fn line(text: &mut Text<'_>, name: &str) {
    text.put(&name.replace(['\n', '\r'], " "));
    text.put("\n");
}
