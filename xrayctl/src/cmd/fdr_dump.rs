//! `xrayctl fdr-dump`: the records of an FDR log in their order, as `llvm-xray fdr-dump` prints
//! them.

use std::io::{self, Write};
use std::path::PathBuf;

use anyhow::Context as _;
use xray_trace::llvm::fdr::verify::{InvalidEnd, State, Verifier};
use xray_trace::llvm::fdr::{BlockPrinter, Item, Kind, Reader, print};
use xray_trace::llvm::{Error, Mode};

use crate::input;
use crate::output::{Console, units};

const EXAMPLES: &str = "\
Examples:
  xrayctl fdr-dump xray-log.server.a1b2c3
  xrayctl fdr-dump --verify xray-log.server.a1b2c3
  xrayctl fdr-dump --salvage xray-log.server.a1b2c3

Prints for a call:
  <Function Enter: #7 delta = +20>
  <Function Exit: #7 delta = +34>";

#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// The log, of any version; - is standard input
    file: PathBuf,
    /// Check the order of the records in each buffer, and print buffer by buffer
    #[arg(long)]
    verify: bool,
    /// Continue behind damage, and list on standard error what was left out
    #[arg(long, conflicts_with = "verify")]
    salvage: bool,
}

/// The treatment of the records.
enum Dump {
    Plain,
    Verified(Box<(Verifier, BlockPrinter)>),
}

pub(crate) fn run(args: &Args, console: &mut Console) -> anyhow::Result<()> {
    let cannot = || format!("cannot read {}", args.file.display());
    let input = input::open_stream(&args.file).with_context(cannot)?;
    let mode = if args.salvage {
        Mode::Salvage
    } else {
        Mode::Strict
    };
    let mut reader = Reader::new(input, mode).with_context(cannot)?;
    let mut dump = if args.verify {
        Dump::Verified(Box::default())
    } else {
        Dump::Plain
    };
    let mut damage = None;
    console.show(|out, _| {
        loop {
            match reader.next() {
                Ok(Some(item)) => {
                    if let Err(error) = dump.check(&item) {
                        damage = Some(error);
                        return Ok(());
                    }
                    dump.print(&item, out)?;
                }
                Ok(None) => {
                    damage = dump.end(reader.offset()).err();
                    return Ok(());
                }
                Err(error) => {
                    damage = Some(error);
                    return Ok(());
                }
            }
        }
    })?;
    if let Some(error) = damage {
        return Err(error).with_context(cannot);
    }
    let skipped = reader.skipped();
    for place in skipped.kept() {
        console.note(&place.to_string());
    }
    let more = skipped.places() - skipped.kept().len() as u64;
    if more > 0 {
        console.note(&format!(
            "and {} left out",
            units::counted(more, "more place")
        ));
    }
    Ok(())
}

// === impl Dump ===

impl Dump {
    /// Checks that the next record may follow.
    fn check(&mut self, item: &Item<'_>) -> Result<(), Error> {
        let Self::Verified(parts) = self else {
            return Ok(());
        };
        let (kind, offset) = (item.record.kind(), item.offset);
        // A buffer without extents begins with NewBuffer.
        let begins = match kind {
            Kind::BufferExtents => true,
            Kind::NewBuffer => parts.0.state() != State::After(Kind::BufferExtents),
            _ => false,
        };
        if begins {
            self.end(offset)?;
        }
        match self {
            Self::Verified(parts) => {
                let step = parts.0.step(kind);
                step.map_err(|why| Error::Order { offset, why })
            }
            Self::Plain => Ok(()),
        }
    }

    /// Checks that the buffer may end here.
    fn end(&mut self, offset: u64) -> Result<(), Error> {
        match self {
            Self::Verified(parts) if parts.0.state() != State::Unknown => {
                let end = parts.0.finish();
                end.map_err(|InvalidEnd { last }| Error::Terminal { offset, last })
            }
            _ => Ok(()),
        }
    }

    fn print(&mut self, item: &Item<'_>, out: &mut dyn Write) -> io::Result<()> {
        match self {
            Self::Verified(parts) => parts.1.print(&item.record, out),
            Self::Plain => {
                print(&item.record, out)?;
                writeln!(out)
            }
        }
    }
}
