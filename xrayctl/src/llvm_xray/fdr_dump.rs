//! `llvm-xray fdr-dump`: the records of an FDR log.

use std::io::{self, Write};

use xray_trace::llvm::fdr::verify::Verifier;
use xray_trace::llvm::fdr::{BlockPrinter, Layout, Record, print};
use xray_trace::llvm::header::HEADER_LEN;

use super::failure::Failure;
use super::fdr::{Blocks, Producer, invalid};
use super::log;
use super::options::{Arguments, Command, Inputs, Opt, ValueKind};
use super::output::Output;

pub(super) const COMMAND: Command = Command {
    name: "fdr-dump",
    about: "FDR Trace Dump",
    inputs: Inputs::Each(&["<xray fdr mode log>"]),
    options: &[Opt {
        name: "verify",
        alias: "",
        value: ValueKind::Flag,
        about: "Verify the structure of the log",
    }],
};

pub(super) fn run(args: &Arguments) -> Result<(), Failure> {
    let bytes = log::read(args.input())?;
    // LLVM looks neither at the kind of the file nor at its byte order.
    let Some(version) = bytes.first_chunk().filter(|_| bytes.len() >= HEADER_LEN) else {
        return Err(Failure::new("Not enough bytes for an XRay FDR log."));
    };
    let layout = Layout::plain(u16::from_le_bytes(*version));
    let mut failure = None;
    Output::standard().write(|out| {
        let written = if args.flag("verify") {
            verify(&bytes, layout, out)
        } else {
            dump(&bytes, layout, out)
        };
        match written {
            Ok(()) => Ok(()),
            Err(Stop::Log(why)) => {
                failure = Some(why);
                Ok(())
            }
            Err(Stop::Output(error)) => Err(error),
        }
    })?;
    failure.map_or(Ok(()), Err)
}

/// Why a dump ends early.
enum Stop {
    /// The log is damaged.
    Log(Failure),
    Output(io::Error),
}

fn dump(bytes: &[u8], layout: Layout, out: &mut dyn Write) -> Result<(), Stop> {
    let mut producer = Producer::new(bytes, layout);
    while let Some(record) = producer.next()? {
        print_line(&record, out)?;
    }
    Ok(())
}

/// Prints the records block by block, if they follow each other as they must.
fn verify(bytes: &[u8], layout: Layout, out: &mut dyn Write) -> Result<(), Stop> {
    let mut producer = Producer::new(bytes, layout);
    let (mut blocks, mut all) = (Blocks::default(), Vec::new());
    loop {
        match producer.next() {
            Ok(Some(record)) => {
                all.push(record);
                blocks.add(record);
            }
            Ok(None) => break,
            Err(failure) => {
                for record in &all {
                    print_line(record, out)?;
                }
                return Err(failure.into());
            }
        }
    }
    for block in blocks.end().iter() {
        let (mut verifier, mut printer) = (Verifier::default(), BlockPrinter::default());
        for record in &block.records {
            verifier.step(record.kind()).map_err(|why| invalid(&why))?;
            let mut text = Vec::new();
            printer.print(record, &mut text)?;
            write_line(record, text, out)?;
        }
    }
    Ok(())
}

fn print_line(record: &Record<&[u8]>, out: &mut dyn Write) -> io::Result<()> {
    let mut text = Vec::new();
    print(record, &mut text)?;
    text.push(b'\n');
    write_line(record, text, out)
}

/// Writes the text of a record. LLVM prints the data of an event as it is, without the bracket at
/// the end of a typed event.
fn write_line(record: &Record<&[u8]>, mut text: Vec<u8>, out: &mut dyn Write) -> io::Result<()> {
    const DATA: &[u8] = b"data = '";
    let (data, end): (&[u8], &[u8]) = match record {
        Record::CustomEvent { data, .. } | Record::CustomEventDelta { data, .. } => (data, b"'>\n"),
        Record::TypedEvent { data, .. } => (data, b"'\n"),
        _ => return out.write_all(&text),
    };
    let begin = text.windows(DATA.len()).position(|word| word == DATA);
    if let Some(begin) = begin {
        text.truncate(begin + DATA.len());
        text.extend_from_slice(data);
        text.extend_from_slice(end);
    }
    out.write_all(&text)
}

// === impl Stop ===

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Log(failure)
    }
}

impl From<io::Error> for Stop {
    fn from(error: io::Error) -> Self {
        Self::Output(error)
    }
}
