//! Speedscope's own JSON. A trace has a profile for each thread, with the begin and the end of each
//! call. Times are nanoseconds after the trace's first event, because readers take numbers for
//! floating point. A profile has its stacks, with the self time of each.
//!
//! (<https://github.com/jlfwong/speedscope/blob/v1.22.2/src/lib/file-format-spec.ts>, "evented" and
//! "sampled" profiles.)

use std::collections::BTreeMap;
use std::io::{self, Write};

use super::frames::Frames;
use super::kernel_ids::KernelIds;
use super::left_out::LeftOut;
use super::stacks::StackTrie;
use super::text::Text;
use super::{ProfileSink, Report, Sink};
use crate::analysis::{Step, Steps};
use crate::model::{Profile, ThreadId, Trace};

/// Speedscope's JSON.
#[derive(Debug, Clone, Copy)]
pub struct Speedscope;

const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

// === impl Speedscope ===

impl Sink for Speedscope {
    fn name(&self) -> &'static str {
        "speedscope"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["speedscope.json", "speedscope"]
    }

    fn about(&self) -> &'static str {
        "every call of every thread, for speedscope.app"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let (mut report, mut left_out) = (Report::default(), LeftOut::default());
        let first = trace.blocks().iter().map(|block| block.first).min();
        let start = first.map_or(0, |first| trace.clock().monotonic_ns(first));
        let mut frames = Frames::default();
        let mut text = Text::new(output);
        head(&mut text);
        let mut separator = "\n";
        for mut steps in Steps::of_threads(trace) {
            text.put(separator);
            separator = ",\n";
            text.put("{\"type\":\"evented\",\"name\":");
            text.json(&name(trace, steps.thread()));
            text.put(",\"unit\":\"nanoseconds\",\"startValue\":0,\"events\":[");
            let (mut end, mut comma) = (0, "\n");
            for step in &mut steps {
                left_out.see(&step);
                let (kind, function, ns) = match step {
                    Step::Enter(open) => {
                        report.calls += 1;
                        ("O", open.function, open.start_ns)
                    }
                    Step::Leave(call) => ("C", call.open.function, call.end_ns),
                    Step::Data(_) | Step::Lost { .. } => continue,
                };
                end = ns.saturating_sub(start);
                text.put(comma);
                comma = ",\n";
                text.put("{\"type\":\"");
                text.put(kind);
                text.put("\",\"at\":");
                text.number(end);
                text.put(",\"frame\":");
                text.number(frames.get(function));
                text.put("}");
                text.pass()?;
            }
            text.put("],\"endValue\":");
            text.number(end);
            text.put("}");
            report.leave_out_of_steps(&steps);
        }
        shared(trace, &frames, &mut text)?;
        left_out.tell(&mut report);
        report.leave_out_unplaced(trace);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }

    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        Some(self)
    }
}

impl ProfileSink for Speedscope {
    fn write(&self, profile: &Profile, output: &mut dyn Write) -> io::Result<Report> {
        let tables = profile.tables();
        let stacks = StackTrie::of_profile(profile, |thread| thread.0);
        let mut by_thread = BTreeMap::<_, Vec<_>>::new();
        for node in stacks.nodes().iter().filter(|node| node.self_ns > 0) {
            let (_, thread) = stacks.stack(node);
            by_thread.entry(ThreadId(thread)).or_default().push(node);
        }
        let mut frames = Frames::default();
        let mut text = Text::new(output);
        head(&mut text);
        let mut separator = "\n";
        for (thread, nodes) in by_thread {
            text.put(separator);
            separator = ",\n";
            text.put("{\"type\":\"sampled\",\"name\":");
            text.json(&name(tables, thread));
            // Ticks, whose length the file does not contain.
            text.put(",\"unit\":\"none\",\"startValue\":0,\"samples\":[");
            let (mut end, mut comma) = (0_u64, "\n");
            for node in &nodes {
                end = end.saturating_add(node.self_ns);
                let (stack, _) = stacks.stack(node);
                text.put(comma);
                comma = ",\n";
                let mut open = "[";
                for function in stack.into_iter().rev() {
                    text.put(open);
                    open = ",";
                    text.number(frames.get(function));
                }
                text.put("]");
                text.pass()?;
            }
            text.put("],\"weights\":[");
            let mut comma = "";
            for node in nodes {
                text.put(comma);
                comma = ",";
                text.number(node.self_ns);
                text.pass()?;
            }
            text.put("],\"endValue\":");
            text.number(end);
            text.put("}");
        }
        shared(tables, &frames, &mut text)?;
        let mut report = Report::of_profile(profile);
        stacks.tell(&mut report);
        Ok(report)
    }
}

/// The displayed name of a thread.
fn name(trace: &Trace, thread: ThreadId) -> String {
    let KernelIds { pid, tid } = KernelIds::of(trace, thread);
    let thread = trace.thread(thread);
    let process = thread.and_then(|thread| trace.process(thread.process));
    let process = process.map_or("?", |process| &process.command);
    let thread = thread.map_or("?", |thread| &thread.name);
    format!("{process} {pid}, {thread} {tid}")
}

/// Writes the part before the profiles.
fn head(text: &mut Text<'_>) {
    text.put("{\"$schema\":\"");
    text.put(SCHEMA);
    text.put("\",\"exporter\":\"xrayctl\",\"activeProfileIndex\":0,\"profiles\":[");
}

/// Writes the part after the profiles: the functions that they refer to.
fn shared(trace: &Trace, frames: &Frames, text: &mut Text<'_>) -> io::Result<()> {
    text.put("\n],\"shared\":{\"frames\":[");
    let mut comma = "\n";
    for id in frames.functions() {
        text.put(comma);
        comma = ",\n";
        text.put("{\"name\":");
        text.json(&trace.function_name(*id));
        let source = trace.function(*id).and_then(|known| known.source.as_ref());
        if let Some(source) = source {
            text.put(",\"file\":");
            text.json(&source.file);
            if source.line != 0 {
                text.put(",\"line\":");
                text.number(source.line);
            }
        }
        text.put("}");
        text.pass()?;
    }
    text.put("\n]}}\n");
    text.finish()
}
