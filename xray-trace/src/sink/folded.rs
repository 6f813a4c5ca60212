//! Folded stacks, as `flamegraph.pl`, inferno and Speedscope read them. A line has the process and
//! the functions of a stack, outermost first, and the self time of the innermost one in
//! nanoseconds. Lines add up: each moment is in one line.

use std::io::{self, Write};

use super::left_out::LeftOut;
use super::stacks::StackTrie;
use super::text::Text;
use super::{ProfileSink, Report, Sink};
use crate::analysis::{Step, Steps};
use crate::model::{ProcessId, Profile, ThreadId, Trace};

/// Folded stacks.
#[derive(Debug, Clone, Copy)]
pub struct Folded;

// === impl Folded ===

impl Sink for Folded {
    fn name(&self) -> &'static str {
        "folded"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["folded"]
    }

    fn about(&self) -> &'static str {
        "self time by stack, for flamegraph.pl and inferno"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let (mut report, mut left_out) = (Report::default(), LeftOut::default());
        let mut stacks = StackTrie::default();
        for mut steps in Steps::of_threads(trace) {
            let process = process_of(trace, steps.thread());
            for step in &mut steps {
                left_out.see(&step);
                match step {
                    Step::Enter(open) => {
                        report.calls += 1;
                        stacks.enter(process, &open);
                    }
                    Step::Leave(call) => stacks.leave(&call),
                    Step::Data(_) | Step::Lost { .. } => {}
                }
            }
            report.leave_out_of_steps(&steps);
        }
        lines(trace, &stacks, output)?;
        left_out.tell(&mut report);
        stacks.tell(&mut report);
        report.leave_out_unplaced(trace);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }

    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        Some(self)
    }
}

impl ProfileSink for Folded {
    fn write(&self, profile: &Profile, output: &mut dyn Write) -> io::Result<Report> {
        let tables = profile.tables();
        let stacks = StackTrie::of_profile(profile, |thread| process_of(tables, thread));
        lines(tables, &stacks, output)?;
        let mut report = Report::of_profile(profile);
        stacks.tell(&mut report);
        Ok(report)
    }
}

/// The root of a thread's stacks: the number of its process.
fn process_of(trace: &Trace, thread: ThreadId) -> u32 {
    let thread = trace.thread(thread);
    thread.map_or(u32::MAX, |thread| thread.process.0)
}

fn lines(trace: &Trace, stacks: &StackTrie, output: &mut dyn Write) -> io::Result<()> {
    let mut text = Text::new(output);
    for node in stacks.nodes() {
        if node.self_ns == 0 {
            continue;
        }
        let (stack, process) = stacks.stack(node);
        let process = trace.process(ProcessId(process));
        let command = process.map(|process| process.command.as_str());
        frame(
            &mut text,
            command.filter(|name| !name.is_empty()).unwrap_or("?"),
        );
        for function in stack.into_iter().rev() {
            text.put(";");
            frame(&mut text, &trace.function_name(function));
        }
        text.put(" ");
        text.number(node.self_ns);
        text.put("\n");
        text.pass()?;
    }
    text.finish()
}

/// Writes a name without the characters that separate frames and lines.
fn frame(text: &mut Text<'_>, name: &str) {
    if name.contains([';', '\n', '\r']) {
        text.put(&name.replace(';', ":").replace(['\n', '\r'], " "));
    } else {
        text.put(name);
    }
}
