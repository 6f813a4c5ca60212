//! Prints records as text, in the format of `llvm-xray fdr-dump`.
//!
//! Two things differ. LLVM omits the `>` at the end of a typed event, and prints `delta = +-5`.
//! LLVM also prints a payload unchanged, so that a line break in it makes lines that look like
//! records. This printer writes control characters as `\n` or `\x1b`.

use std::io::{self, Write};

use super::{FunctionKind, Kind, Record};

/// Prints a record, without a line break.
///
/// # Errors
///
/// The errors of the output.
pub fn print(record: &Record<&[u8]>, out: &mut dyn Write) -> io::Result<()> {
    match *record {
        Record::BufferExtents { size } => write!(out, "<Buffer: size = {size} bytes>"),
        Record::NewBuffer { tid } => write!(out, "<Thread ID: {tid}>"),
        Record::EndOfBuffer => write!(out, "<End of Buffer>"),
        Record::NewCpu { cpu, tsc } => write!(out, "<CPU: id = {cpu}, tsc = {tsc}>"),
        Record::TscWrap { tsc } => write!(out, "<TSC Wrap: base = {tsc}>"),
        Record::WallTime { seconds, micros } => {
            write!(out, "<Wall Time: seconds = {seconds}.{micros:06}>")
        }
        Record::Pid { pid } => write!(out, "<PID: {pid}>"),
        Record::CallArgument { value } => {
            write!(out, "<Call Argument: data = {value} (hex = {value:#x})>")
        }
        Record::Function {
            kind,
            function,
            delta,
        } => {
            let kind = match kind {
                FunctionKind::Enter => "Enter",
                FunctionKind::Exit => "Exit",
                FunctionKind::TailExit => "Tail Exit",
                FunctionKind::EnterArg => "Enter With Arg",
            };
            write!(out, "<Function {kind}: #{function} delta = +{delta}>")
        }
        Record::CustomEvent { tsc, cpu, data } => {
            let size = data.len();
            write!(
                out,
                "<Custom Event: tsc = {tsc}, cpu = {cpu}, size = {size}, data = '"
            )?;
            payload(data, out)
        }
        Record::CustomEventDelta { delta, data } => {
            let size = data.len();
            write!(
                out,
                "<Custom Event: delta = {delta:+}, size = {size}, data = '"
            )?;
            payload(data, out)
        }
        Record::TypedEvent {
            delta,
            event_type,
            data,
        } => {
            let size = data.len();
            write!(
                out,
                "<Typed Event: delta = {delta:+}, type = {event_type}, size = {size}, data = '"
            )?;
            payload(data, out)
        }
    }
}

fn payload(data: &[u8], out: &mut dyn Write) -> io::Result<()> {
    for piece in data.chunk_by(|a, b| a.is_ascii_control() == b.is_ascii_control()) {
        if piece.first().is_some_and(u8::is_ascii_control) {
            write!(out, "{}", piece.escape_ascii())?;
        } else {
            out.write_all(piece)?;
        }
    }
    out.write_all(b"'>")
}

/// Prints the records of buffers, indented by their kind, in the format of `llvm-xray fdr-dump
/// -verify`.
#[derive(Debug, Default)]
pub struct BlockPrinter {
    part: Part,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Part {
    #[default]
    Start,
    Preamble,
    Metadata,
    Function,
    Argument,
    Event,
    End,
}

// === impl BlockPrinter ===

impl BlockPrinter {
    /// Prints a record and a line break. BufferExtents are not printed; a new block begins there.
    ///
    /// # Errors
    ///
    /// The errors of the output.
    pub fn print(&mut self, record: &Record<&[u8]>, out: &mut dyn Write) -> io::Result<()> {
        let before = self.part;
        match record.kind() {
            Kind::BufferExtents => {
                self.part = Part::Start;
                return Ok(());
            }
            Kind::NewBuffer => {
                writeln!(out, "\n[New Block]\nPreamble: ")?;
                self.part = Part::Preamble;
            }
            Kind::WallClockTime | Kind::PidEntry => self.part = Part::Preamble,
            kind @ (Kind::NewCpuId | Kind::TscWrap) => {
                match (before, kind) {
                    (Part::Preamble, Kind::NewCpuId) => writeln!(out, "\nBody:")?,
                    (Part::Function, Kind::NewCpuId) => write!(out, "\nMetadata: ")?,
                    (Part::Function, _) => write!(out, "\nMetadata:")?,
                    _ => {}
                }
                write!(out, " ")?;
                self.part = Part::Metadata;
            }
            kind @ (Kind::CustomEvent | Kind::TypedEvent | Kind::Function) => {
                if before == Part::Metadata {
                    writeln!(out)?;
                }
                let function = kind == Kind::Function;
                write!(out, "{}  ", if function { '-' } else { '*' })?;
                self.part = if function {
                    Part::Function
                } else {
                    Part::Event
                };
            }
            Kind::CallArg => {
                write!(out, " : ")?;
                self.part = Part::Argument;
            }
            Kind::EndOfBuffer => {
                write!(out, " *** ")?;
                self.part = Part::End;
            }
        }
        print(record, out)?;
        writeln!(out)
    }
}
