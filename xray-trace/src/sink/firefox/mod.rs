//! The Firefox Profiler's JSON, as profiler.firefox.com reads it. A thread has a sample for each
//! change of its stack, and the sample weighs as many milliseconds as the stack lasted. So call
//! tree, flame graph and stack chart have exact times, and each moment is in one sample. Arguments,
//! results, user events and losses are markers.
//!
//! Times are milliseconds with six decimals, since the trace's first event. Readers take them for
//! floating point, which is exact to the nanosecond for 104 days.
//!
//! The tables of the format consist of columns, so the sink goes through a thread once for each
//! column that differs between rows.
//! (<https://github.com/firefox-devtools/profiler/blob/df31314e16bf32fd3a6dd0d61806a80dbb8a99f5/src/types/profile.ts>,
//! version 70 of the "processed" format.)

mod column;
mod shared;

use std::io::{self, Write};

use self::column::Column;
use self::shared::STRINGS;
use super::frames::Frames;
use super::kernel_ids::KernelIds;
use super::stacks::StackTrie;
use super::text::Text;
use super::wording::calibration;
use super::{Report, Sink};
use crate::analysis::{Call, Ending, Open, Step, Steps};
use crate::container::Block;
use crate::model::{DataKind, ThreadId, Trace};

/// The Firefox Profiler's JSON.
#[derive(Debug, Clone, Copy)]
pub struct Firefox;

/// The description of the markers for the reader.
const MARKER_SCHEMA: &str = r#"[
{"name":"XRayArguments","tableLabel":"{marker.name}({marker.data.arguments})","chartLabel":"{marker.data.arguments}","display":["marker-chart","marker-table","timeline-overview"],"fields":[{"key":"arguments","label":"Arguments","format":"string"}]},
{"name":"XRayResult","tableLabel":"{marker.name} = {marker.data.result}","chartLabel":"{marker.data.result}","display":["marker-chart","marker-table","timeline-overview"],"fields":[{"key":"result","label":"Result","format":"string"}]},
{"name":"XRayEvent","tableLabel":"{marker.data.data}","chartLabel":"{marker.data.data}","display":["marker-chart","marker-table","timeline-overview"],"fields":[{"key":"eventType","label":"Type","format":"integer"},{"key":"typeName","label":"Type's name","format":"string"},{"key":"data","label":"Data","format":"string"},{"key":"size","label":"Bytes before a limit cut it","format":"integer"}]},
{"name":"XRayLoss","tableLabel":"{marker.data.events}","chartLabel":"{marker.data.events}","display":["marker-chart","marker-table","timeline-overview"],"fields":[{"key":"events","label":"Events","format":"string"}]}
]"#;

struct Output<'a, 'o> {
    trace: &'a Trace,
    text: Text<'o>,
    /// The time of the trace's first event on `CLOCK_MONOTONIC`.
    start: u64,
    /// The stacks of all threads together.
    stacks: StackTrie,
    frames: Frames,
    report: Report,
}

/// A thread. The sink goes through it several times.
struct Thread<'a> {
    trace: &'a Trace,
    id: ThreadId,
    blocks: Vec<&'a Block>,
}

// === impl Firefox ===

impl Sink for Firefox {
    fn name(&self) -> &'static str {
        "firefox"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["firefox.json", "firefox"]
    }

    fn about(&self) -> &'static str {
        "every call of every thread, for profiler.firefox.com"
    }

    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report> {
        let first = trace.blocks().iter().map(|block| block.first).min();
        let mut output = Output {
            trace,
            text: Text::new(output),
            start: first.map_or(0, |first| trace.clock().monotonic_ns(first)),
            stacks: StackTrie::default(),
            frames: Frames::default(),
            report: Report::default(),
        };
        output.meta(first.map_or(0, |first| trace.clock().wall_ns(first)));
        let mut separator = "\n";
        for (id, blocks) in trace.blocks_by_thread() {
            output.text.put(separator);
            separator = ",\n";
            output.thread(&Thread { trace, id, blocks })?;
        }
        let Output {
            mut text,
            stacks,
            mut frames,
            mut report,
            ..
        } = output;
        text.put("\n],");
        shared::write(trace, &stacks, &mut frames, &mut text)?;
        text.put("}\n");
        text.finish()?;
        stacks.tell(&mut report);
        report.leave_out_unplaced(trace);
        report.leave_out_kernel_events(trace);
        Ok(report)
    }
}

// === impl Output ===

impl Output<'_, '_> {
    /// Writes the part before the threads.
    fn meta(&mut self, wall_ns: u64) {
        let text = &mut self.text;
        text.put("{\"meta\":{\"version\":36,\"preprocessedProfileVersion\":70,\"product\":");
        let process = self.trace.processes().first();
        text.json(process.map_or("xrayctl", |process| &process.command));
        text.put(",\"importedFrom\":\"xrayctl\",\"interval\":0.000001,\"startTime\":");
        text.decimal::<6>(wall_ns);
        text.put(",\"startTimeAsClockMonotonicNanosecondsSinceBoot\":");
        text.number(self.start);
        text.put(
            ",\"processType\":0,\"stackwalk\":1,\"symbolicated\":true,\
             \"symbolicationNotSupported\":true,\"usesOnlyOneStackType\":true,\
             \"sourceCodeIsNotOnSearchfox\":true,\"keepProfileThreadOrder\":true,\
             \"categories\":[{\"name\":\"Other\",\"color\":\"grey\",\"subcategories\":[\"Other\"]}],\
             \"extra\":[{\"label\":\"Clock\",\"entries\":[{\"label\":\"Calibration\",\"format\":\"string\",\"value\":",
        );
        text.json(calibration(self.trace));
        text.put("}]}],\"markerSchema\":");
        text.put(MARKER_SCHEMA);
        text.put("},\"libs\":[],\"threads\":[");
    }

    fn thread(&mut self, thread: &Thread<'_>) -> io::Result<()> {
        let KernelIds { pid, tid } = KernelIds::of(self.trace, thread.id);
        let known = self.trace.thread(thread.id);
        let process = known.and_then(|known| self.trace.process(known.process));
        let text = &mut self.text;
        text.put("{\"name\":");
        text.json(known.map_or("", |known| &known.name));
        text.put(",\"processName\":");
        text.json(process.map_or("", |process| &process.command));
        text.put(",\"isMainThread\":");
        text.put(if pid == tid { "true" } else { "false" });
        text.put(",\"pid\":\"");
        text.number(pid);
        text.put("\",\"tid\":");
        text.number(tid);
        text.put(
            ",\"processType\":\"default\",\"processStartupTime\":0,\"processShutdownTime\":null,\
             \"registerTime\":0,\"unregisterTime\":null,\"pausedRanges\":[],\
             \"showMarkersInTimeline\":true,\n\"samples\":{\"weightType\":\"tracing-ms\",",
        );
        let markers = self.samples(thread)?;
        self.text.put("},\n\"markers\":{");
        self.markers(thread, markers)?;
        self.text.put("}}");
        Ok(())
    }

    /// Writes a row for each change of the stack. Returns the number of markers of the thread.
    fn samples(&mut self, thread: &Thread<'_>) -> io::Result<u64> {
        let (mut samples, mut markers, mut closed) = (0, 0, 0);
        let mut steps = thread.steps();
        let mut column = Column::begin(&mut self.text, "stack");
        for step in &mut steps {
            markers += u64::from(thread.marked_ns(&step).is_some());
            match step {
                Step::Enter(open) => {
                    self.report.calls += 1;
                    self.stacks.enter(0, &open);
                }
                Step::Leave(call) => {
                    closed += u64::from(call.how == Ending::Closed);
                    self.stacks.leave(&call);
                }
                Step::Data(_) | Step::Lost { .. } => continue,
            }
            samples += 1;
            match self.stacks.innermost() {
                Some(stack) => column.cell()?.number(stack as u64),
                None => column.cell()?.put("null"),
            }
        }
        column.end();
        self.report.leave_out(
            "missing exits, assumed where the call was last seen open",
            closed,
        );
        self.report.leave_out_of_steps(&steps);

        let times = || thread.steps().filter_map(|step| changed_ns(&step));
        let mut column = Column::begin(&mut self.text, "time");
        for ns in times() {
            column.cell()?.decimal::<6>(ns.saturating_sub(self.start));
        }
        column.end();
        // A stack lasts until the next one; the last one is empty.
        let mut column = Column::begin(&mut self.text, "weight");
        let mut times = times().peekable();
        while let Some(ns) = times.next() {
            let until = times.peek().copied().unwrap_or(ns);
            column.cell()?.decimal::<6>(until.saturating_sub(ns));
        }
        column.end();
        column::length(&mut self.text, samples);
        Ok(markers)
    }

    /// Writes a row for each step with data that samples do not contain.
    fn markers(&mut self, thread: &Thread<'_>, count: u64) -> io::Result<()> {
        // Most threads have no markers, and are not gone through.
        let steps = || (count > 0).then(|| thread.steps()).into_iter().flatten();
        // The names of functions follow the other strings.
        let frames = &mut self.frames;
        let mut name = |function| frames.get(function) + STRINGS.len() as u64;
        let mut column = Column::begin(&mut self.text, "name");
        for step in steps() {
            let name = match step {
                Step::Enter(open) if !open.args.is_empty() => name(open.function),
                Step::Leave(Call {
                    open,
                    result: Some(_),
                    ..
                }) => name(open.function),
                Step::Data(user_event) if user_event.kind == DataKind::Custom => {
                    shared::CUSTOM_EVENT
                }
                Step::Data(_) => shared::TYPED_EVENT,
                Step::Lost { .. } => shared::EVENTS_LOST,
                Step::Enter(_) | Step::Leave(_) => continue,
            };
            column.cell()?.number(name);
        }
        column.end();
        let mut column = Column::begin(&mut self.text, "startTime");
        for ns in steps().filter_map(|step| thread.marked_ns(&step)) {
            column.cell()?.decimal::<6>(ns.saturating_sub(self.start));
        }
        column.end();
        let mut column = Column::begin(&mut self.text, "data");
        let mut all = thread.steps();
        while let Some(step) = all.next().filter(|_| count > 0) {
            match step {
                Step::Enter(Open { args, .. }) if !args.is_empty() => {
                    let args = args.as_slice().iter().map(|arg| format!("{arg:#x}"));
                    let args = args.collect::<Vec<_>>().join(", ");
                    let text = column.cell()?;
                    // As text, because readers take numbers for floating point.
                    text.put(&format!(
                        "{{\"type\":\"XRayArguments\",\"arguments\":\"{args}\"}}"
                    ));
                }
                Step::Leave(Call {
                    result: Some(result),
                    ..
                }) => column.cell()?.put(&format!(
                    "{{\"type\":\"XRayResult\",\"result\":\"{result:#x}\"}}"
                )),
                Step::Data(user_event) => {
                    let text = column.cell()?;
                    text.put("{\"type\":\"XRayEvent\",\"data\":");
                    text.json_bytes(all.data(&user_event));
                    if user_event.data.is_cut() {
                        text.put(",\"size\":");
                        text.number(user_event.data.size());
                    }
                    if let DataKind::Typed(event_type) = user_event.kind {
                        text.put(",\"eventType\":");
                        text.number(event_type);
                        if let Some(name) = thread.trace.event_type(thread.id, event_type) {
                            text.put(",\"typeName\":");
                            text.json(name);
                        }
                    }
                    text.put("}");
                }
                Step::Lost { events, .. } => {
                    let text = column.cell()?;
                    text.put("{\"type\":\"XRayLoss\",\"events\":\"");
                    text.number(events);
                    text.put("\"}");
                }
                Step::Enter(_) | Step::Leave(_) => {}
            }
        }
        column.end();
        column::same(&mut self.text, "endTime", "null", count)?;
        // All markers are instants.
        column::same(&mut self.text, "phase", "0", count)?;
        column::same(&mut self.text, "category", "0", count)?;
        column::length(&mut self.text, count);
        Ok(())
    }
}

// === impl Thread ===

impl<'a> Thread<'a> {
    fn steps(&self) -> Steps<'a> {
        Steps::new(self.trace.clock(), self.id, self.blocks.clone())
    }

    /// The time of a step that has a marker; `None` for any other.
    fn marked_ns(&self, step: &Step) -> Option<u64> {
        match step {
            Step::Enter(open) => (!open.args.is_empty()).then_some(open.start_ns),
            Step::Leave(call) => call.result.map(|_| call.end_ns),
            Step::Data(user_event) => Some(user_event.ns),
            Step::Lost { ticks, .. } => Some(self.trace.clock().monotonic_ns(*ticks)),
        }
    }
}

/// The time of a step that changed the stack; `None` for any other.
fn changed_ns(step: &Step) -> Option<u64> {
    match step {
        Step::Enter(open) => Some(open.start_ns),
        Step::Leave(call) => Some(call.end_ns),
        Step::Data(_) | Step::Lost { .. } => None,
    }
}
