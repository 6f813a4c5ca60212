//! `llvm-xray fdr-dump`: the records of an FDR log.

use std::io::{self, Write};

use xray_trace::llvm::fdr::verify::Verifier;
use xray_trace::llvm::fdr::{BlockPrinter, Layout, Record, print};

use super::failure::Failure;
use super::fdr::{Blocks, Producer, invalid};
use super::log;
use super::options::{Command, Given, Inputs, Opt, Takes};
use super::output::Output;

pub(super) const COMMAND: Command = Command {
    name: "fdr-dump",
    about: "FDR Trace Dump",
    inputs: Inputs::Each(&["<xray fdr mode log>"]),
    options: &[Opt {
        name: "verify",
        alias: "",
        takes: Takes::Flag,
        about: "Verify the structure of the log",
    }],
};

pub(super) fn run(given: &Given) -> Result<(), Failure> {
    let bytes = log::read(given.input())?;
    let layout = log::layout(&bytes)?;
    let mut failure = None;
    Output::open("-".as_ref())?.write(|out| {
        let written = if given.flag("verify") {
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

/// Writes the text of a record. LLVM prints the data of an event as it is, and forgets the bracket at
/// the end of a typed one.
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
