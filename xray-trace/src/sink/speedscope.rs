//! Speedscope's own JSON: a profile for each thread, with each call's begin and end in nanoseconds after the trace's
//! first event, since its readers take numbers for floating point.
//!
//! (<https://github.com/jlfwong/speedscope/blob/v1.22.2/src/lib/file-format-spec.ts>, "evented" profiles.)

use std::io::{self, Write};

use super::frames::Frames;
use super::text::Text;
use super::unsaid::Unsaid;
use super::{Place, Report, Sink};
use crate::analysis::{Step, Steps};
use crate::model::Trace;

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
        let (mut report, mut unsaid) = (Report::default(), Unsaid::default());
        let first = trace.blocks().iter().map(|block| block.first).min();
        let start = first.map_or(0, |first| trace.clock().monotonic_ns(first));
        let mut frames = Frames::default();
        let mut text = Text::new(output);
        text.put("{\"$schema\":\"");
        text.put(SCHEMA);
        text.put("\",\"exporter\":\"xrayctl\",\"activeProfileIndex\":0,\"profiles\":[");
        let mut separator = "\n";
        for mut steps in Steps::of_threads(trace) {
            text.put(separator);
            separator = ",\n";
            text.put("{\"type\":\"evented\",\"name\":");
            text.json(&name(trace, &steps));
            text.put(",\"unit\":\"nanoseconds\",\"startValue\":0,\"events\":[");
            let (mut end, mut comma) = (0, "\n");
            for step in &mut steps {
                unsaid.see(&step);
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
        text.put("\n],\"shared\":{\"frames\":[");
        frame_list(trace, &frames, &mut text)?;
        text.put("\n]}}\n");
        text.finish()?;
        unsaid.tell(&mut report);
        report.leave_out_unplaced(trace);
        Ok(report)
    }
}

/// What a thread is called.
fn name(trace: &Trace, steps: &Steps<'_>) -> String {
    let Place { pid, tid } = Place::of(trace, steps.thread());
    let thread = trace.thread(steps.thread());
    let process = thread.and_then(|thread| trace.process(thread.process));
    let process = process.map_or("?", |process| &process.command);
    let thread = thread.map_or("?", |thread| &thread.name);
    format!("{process} {pid}, {thread} {tid}")
}

fn frame_list(trace: &Trace, frames: &Frames, text: &mut Text<'_>) -> io::Result<()> {
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
    Ok(())
}
