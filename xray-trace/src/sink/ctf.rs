//! The Common Trace Format, version 1.8, as `babeltrace2` and Trace Compass read it: a directory
//! with a description of the streams (`metadata`, in TSDL) and a file for each thread. It contains
//! every event.
//!
//! ```text
//! stream-3   packet, packet, …
//! packet     u32 magic, u32 stream class
//!            u64 first and last time, u64 size of the content and of the packet in bits,
//!            u32 pid, u32 tid, names of process and thread, each ended by a zero byte
//!            events: u8 class, u64 time, the class's fields
//! ```
//!
//! All fields are packed and little-endian. Times are `CLOCK_MONOTONIC` in nanoseconds. The
//! metadata contains the distance to the wall clock. (<https://diamon.org/ctf/v1.8.3/>)

use std::io::{self, Write};

use super::events::{EachEvent, each_event};
use super::kernel_ids::KernelIds;
use super::text::Text;
use super::unpack_thread::Bytes;
use super::wording::calibration;
use super::{Folder, FolderSink, Report};
use crate::event_format::EventFilter;
use crate::model::{CallKind, DataKind, Event, EventBody, ThreadId, Trace};

/// The Common Trace Format.
#[derive(Debug, Clone, Copy)]
pub struct Ctf;

const MAGIC: u32 = 0xc1fc_1fc1;
/// The offsets in a packet of its first and last time, and of its sizes.
const TIMES_AT: usize = 8;
const SIZES_AT: usize = 24;
/// The length at which a packet is ended, in bytes.
const PACKET_LEN: usize = 1 << 16;

/// The event classes, as numbered in the metadata.
mod class {
    pub(super) const ENTER: u8 = 0;
    pub(super) const ENTER_ARGS: u8 = 1;
    pub(super) const EXIT: u8 = 2;
    pub(super) const TAIL_EXIT: u8 = 3;
    pub(super) const CUSTOM: u8 = 4;
    pub(super) const TYPED: u8 = 5;
    pub(super) const PROCESSOR: u8 = 6;
    pub(super) const LOST: u8 = 7;
    pub(super) const UNWOUND: u8 = 8;
    pub(super) const UNMATCHED_EXIT: u8 = 9;
    pub(super) const EXIT_RESULT: u8 = 10;
}

const DECLARATIONS: &str = r#"typealias integer { size = 8; align = 8; signed = false; } := u8;
typealias integer { size = 16; align = 8; signed = false; } := u16;
typealias integer { size = 32; align = 8; signed = false; } := u32;
typealias integer { size = 64; align = 8; signed = false; } := u64;
typealias integer { size = 64; align = 8; signed = false; base = 16; } := value_t;
typealias integer { size = 8; align = 8; signed = false; base = 16; } := byte_t;

trace {
	major = 1;
	minor = 8;
	byte_order = le;
	packet.header := struct { u32 magic; u32 stream_id; };
};
"#;

const EVENTS: &str = r#"typealias integer { size = 64; align = 8; signed = false; map = clock.monotonic.value; } := time_t;

stream {
	id = 0;
	packet.context := struct {
		time_t timestamp_begin; time_t timestamp_end; u64 content_size; u64 packet_size;
		u32 vpid; u32 vtid;
		string { encoding = UTF8; } process; string { encoding = UTF8; } thread;
	};
	event.header := struct { u8 id; time_t timestamp; };
};

event { id = 0; stream_id = 0; name = "function_enter"; fields := struct { function_t function; }; };
event { id = 1; stream_id = 0; name = "function_enter_args"; fields := struct { function_t function; u8 count; value_t args[count]; }; };
event { id = 2; stream_id = 0; name = "function_exit"; fields := struct { function_t function; }; };
event { id = 3; stream_id = 0; name = "function_tail_exit"; fields := struct { function_t function; }; };
event { id = 4; stream_id = 0; name = "custom_event"; fields := struct { u32 original_size; u32 size; byte_t data[size]; }; };
event { id = 5; stream_id = 0; name = "typed_event"; fields := struct { event_type_t type; u32 original_size; u32 size; byte_t data[size]; }; };
event { id = 6; stream_id = 0; name = "processor"; fields := struct { u16 cpu; }; };
event { id = 7; stream_id = 0; name = "events_lost"; fields := struct { u64 events; }; };
event { id = 8; stream_id = 0; name = "calls_unwound"; fields := struct { u64 calls; }; };
event { id = 9; stream_id = 0; name = "exits_astray"; fields := struct { u8 exits; }; };
event { id = 10; stream_id = 0; name = "function_exit_result"; fields := struct { function_t function; value_t result; }; };
"#;

struct Output<'a> {
    trace: &'a Trace,
    folder: &'a mut dyn Folder,
    /// The head of the current thread's packets.
    head: Vec<u8>,
    /// The packet that is being filled: its head and its events.
    packet: Vec<u8>,
    /// The times of its first and its latest event.
    span: Option<(u64, u64)>,
    /// The time of the thread's latest event.
    now: u64,
}

// === impl Ctf ===

impl FolderSink for Ctf {
    fn name(&self) -> &'static str {
        "ctf"
    }

    fn extensions(&self) -> &'static [&'static str] {
        &["ctf"]
    }

    fn about(&self) -> &'static str {
        "Common Trace Format, for babeltrace2 and Trace Compass; a directory"
    }

    fn write(&self, trace: &Trace, folder: &mut dyn Folder) -> io::Result<Report> {
        folder.begin("metadata")?;
        metadata(trace, folder.current())?;
        let mut output = Output {
            trace,
            folder,
            head: Vec::new(),
            packet: Vec::with_capacity(2 * PACKET_LEN),
            span: None,
            now: 0,
        };
        let mut report = each_event(trace, &EventFilter::default(), &mut output)?;
        output.end_packet()?;
        report.leave_out_kernel_events(trace);
        Ok(report)
    }
}

fn metadata(trace: &Trace, to: &mut dyn Write) -> io::Result<()> {
    let mut text = Text::new(to);
    text.put("/* CTF 1.8 */\n\n");
    text.put(DECLARATIONS);
    text.put("\nenv {\n\ttracer_name = \"xrayd\";\n\tcalibration = ");
    quoted(&mut text, calibration(trace));
    text.put(";\n};\n\nclock {\n\tname = monotonic;\n\tfreq = 1000000000;\n");
    // The difference between the clocks at the first anchor. A trace without an anchor has no wall
    // clock.
    let first = trace.clock().anchors().first();
    if first.is_some() {
        // Times with the offset are times since 1970. babeltrace2 takes LTTng's clock as such a
        // clock, too, and shows no other clock beside it.
        text.put("\tabsolute = TRUE;\n");
    }
    let apart = first.map_or(0, |anchor| {
        let apart = anchor.wall_ns.saturating_sub(anchor.monotonic_ns);
        // A greater difference would leave no room for the times.
        apart.min(u64::MAX / 4)
    });
    text.put("\toffset_s = ");
    text.number(apart / 1_000_000_000);
    text.put(";\n\toffset = ");
    text.number(apart % 1_000_000_000);
    text.put(";\n};\n\n");
    let functions = trace.functions().iter();
    let functions = functions.map(|known| (known.name.as_str(), u64::from(known.id.0)));
    labelled(&mut text, "u32", "function_t", functions)?;
    // The types of several programs can share a number with different names. Readers show all
    // names.
    let types = trace.event_types().iter();
    let types = types.map(|known| (known.name.as_str(), u64::from(known.number)));
    labelled(&mut text, "u16", "event_type_t", types)?;
    text.put(EVENTS);
    text.finish()
}

/// Declares an integer type, with names for some of its values.
fn labelled<'a>(
    text: &mut Text<'_>,
    base: &str,
    name: &str,
    labels: impl Iterator<Item = (&'a str, u64)>,
) -> io::Result<()> {
    text.put("typealias ");
    let mut labels = labels.peekable();
    if labels.peek().is_none() {
        text.put(base);
    } else {
        text.put("enum : ");
        text.put(base);
        text.put(" {\n");
        for (label, number) in labels {
            text.put("\t");
            quoted(text, label);
            text.put(" = ");
            text.number(number);
            text.put(",\n");
            text.pass()?;
        }
        text.put("}");
    }
    text.put(" := ");
    text.put(name);
    text.put(";\n\n");
    Ok(())
}

/// Writes a string of TSDL, which has C's syntax. A zero byte would end it.
fn quoted(text: &mut Text<'_>, name: &str) {
    text.put("\"");
    for byte in name.bytes() {
        match byte {
            b'"' => text.put("\\\""),
            b'\\' => text.put("\\\\"),
            0 => text.put("?"),
            0..0x20 | 0x7f => text.put(&format!("\\{byte:03o}")),
            _ => text.bytes(&[byte]),
        }
    }
    text.put("\"");
}

// === impl Output ===

impl EachEvent for Output<'_> {
    fn thread(&mut self, thread: ThreadId) -> io::Result<()> {
        self.end_packet()?;
        self.now = 0;
        let KernelIds { pid, tid } = KernelIds::of(self.trace, thread);
        let known = self.trace.thread(thread);
        let process = known.and_then(|known| self.trace.process(known.process));
        let head = &mut self.head;
        head.clear();
        head.extend_from_slice(&MAGIC.to_le_bytes());
        // The stream class. Times and sizes follow; they are set at the packet's end.
        head.extend_from_slice(&0_u32.to_le_bytes());
        head.extend_from_slice(&[0; 32]);
        head.extend_from_slice(&pid.to_le_bytes());
        head.extend_from_slice(&tid.to_le_bytes());
        for name in [
            process.map_or("", |process| &process.command),
            known.map_or("", |known| &known.name),
        ] {
            head.extend(name.bytes().filter(|byte| *byte != 0));
            head.push(0);
        }
        self.folder.begin(&format!("stream-{}", thread.0))
    }

    fn event(&mut self, event: &Event, bytes: &Bytes) -> io::Result<()> {
        // A hostile file may contain blocks in any order, and readers reject times that run
        // backwards.
        self.now = self.trace.clock().monotonic_ns(event.ticks).max(self.now);
        if self.packet.is_empty() {
            self.packet.extend_from_slice(&self.head);
        }
        let (first, _) = self.span.unwrap_or((self.now, self.now));
        self.span = Some((first, self.now));
        match event.body {
            EventBody::Call {
                function,
                kind,
                values,
            } => {
                let (class, values) = match (kind, values.as_slice()) {
                    (CallKind::Enter, []) => (class::ENTER, &[][..]),
                    (CallKind::Enter, args) => (class::ENTER_ARGS, args),
                    (CallKind::Exit, []) => (class::EXIT, &[][..]),
                    (CallKind::Exit, [result, ..]) => {
                        (class::EXIT_RESULT, std::slice::from_ref(result))
                    }
                    (CallKind::TailExit, _) => (class::TAIL_EXIT, &[][..]),
                };
                self.begin(class);
                self.packet.extend_from_slice(&function.0.to_le_bytes());
                if class == class::ENTER_ARGS {
                    let count = u8::try_from(values.len()).map_err(io::Error::other)?;
                    self.packet.push(count);
                }
                for value in values {
                    self.packet.extend_from_slice(&value.to_le_bytes());
                }
            }
            EventBody::Data { kind, data } => {
                match kind {
                    // The report counts them.
                    DataKind::Kernel(_) => return Ok(()),
                    DataKind::Custom => self.begin(class::CUSTOM),
                    DataKind::Typed(event_type) => {
                        self.begin(class::TYPED);
                        self.packet.extend_from_slice(&event_type.to_le_bytes());
                    }
                }
                let original_size = u32::try_from(data.size()).map_err(io::Error::other)?;
                self.packet.extend_from_slice(&original_size.to_le_bytes());
                let data = bytes.get(data);
                let size = u32::try_from(data.len()).map_err(io::Error::other)?;
                self.packet.extend_from_slice(&size.to_le_bytes());
                self.packet.extend_from_slice(data);
            }
            EventBody::Cpu { cpu } => {
                self.begin(class::PROCESSOR);
                self.packet.extend_from_slice(&cpu.to_le_bytes());
            }
            EventBody::Unwound { calls } => {
                self.begin(class::UNWOUND);
                self.packet.extend_from_slice(&calls.to_le_bytes());
            }
            EventBody::UnmatchedExit => {
                self.begin(class::UNMATCHED_EXIT);
                // The number of unmatched exits that follow.
                self.packet.push(1);
            }
            EventBody::Lost { events } => {
                self.begin(class::LOST);
                self.packet.extend_from_slice(&events.to_le_bytes());
            }
        }
        if self.packet.len() >= PACKET_LEN {
            self.end_packet()?;
        }
        Ok(())
    }
}

impl Output<'_> {
    /// Writes the head of an event.
    fn begin(&mut self, class: u8) {
        self.packet.push(class);
        self.packet.extend_from_slice(&self.now.to_le_bytes());
    }

    fn end_packet(&mut self) -> io::Result<()> {
        let Some((first, last)) = self.span.take() else {
            return Ok(());
        };
        let bits = self.packet.len() as u64 * 8;
        let known = [(TIMES_AT, [first, last]), (SIZES_AT, [bits, bits])];
        for (at, numbers) in known {
            let numbers = numbers.map(u64::to_le_bytes).concat();
            if let Some(place) = self.packet.get_mut(at..at + numbers.len()) {
                place.copy_from_slice(&numbers);
            }
        }
        self.folder.current().write_all(&self.packet)?;
        self.packet.clear();
        Ok(())
    }
}
