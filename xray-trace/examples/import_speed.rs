//! Measures the speed of importing a log of LLVM's flight data recorder, and of computing the table
//! of its functions.
//!
//! `cargo run --release -p xray-trace --features import --example import_speed -- FILE` writes a
//! log of 8 million events to FILE (64 MB), unless FILE exists, and reads it.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::PathBuf;
use std::time::Instant;

use xray_trace::analysis::{AccountOptions, Filter, account};
use xray_trace::llvm::fdr::{FunctionKind, Record, Writer};
use xray_trace::llvm::header::{Header, LogType};
use xray_trace::source::{Options, open};

const EVENTS: u64 = 8_000_000;
const FUNCTIONS: u32 = 1000;
const THREADS: i32 = 8;
const PER_BUFFER: u64 = 2000;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = PathBuf::from(std::env::args().nth(1).ok_or("which file?")?);
    if !fs::exists(&path)? {
        write(File::create(&path)?)?;
    }
    let begun = Instant::now();
    let opened = open(File::open(&path)?, &Options::default())?;
    let imported = begun.elapsed();
    let begun = Instant::now();
    let table = account(&opened.trace, &Filter::default(), AccountOptions::default());
    let accounted = begun.elapsed();
    let calls: u64 = table.rows.iter().map(|row| row.calls).sum();
    let events = opened.trace.totals().calls;
    println!("{events} events, {calls} calls; {:?}", opened.notes);
    for (what, time) in [("import", imported), ("account", accounted)] {
        let rate = events as f64 / time.as_secs_f64() / 1e6;
        println!("{what}: {:.3} s, {rate:.1} M events/s", time.as_secs_f64());
    }
    Ok(())
}

/// Threads take turns, with a buffer each; calls nest two deep.
fn write(file: File) -> Result<(), Box<dyn std::error::Error>> {
    let header = Header::new(LogType::Fdr, 5, 3_000_000_000);
    let mut writer = Writer::new(BufWriter::new(file), header)?;
    let mut tsc = 1_000_000_000_u64;
    let mut state = 1_u32;
    for buffer in 0..EVENTS / PER_BUFFER {
        let tid = 1000 + i32::try_from(buffer)? % THREADS;
        let size = 4 * 16 + 8 * PER_BUFFER;
        writer.record(&Record::BufferExtents { size })?;
        writer.record(&Record::NewBuffer { tid })?;
        writer.record(&Record::WallTime {
            seconds: 1,
            micros: 0,
        })?;
        writer.record(&Record::Pid { pid: 1000 })?;
        writer.record(&Record::NewCpu { cpu: 0, tsc })?;
        for _ in 0..PER_BUFFER / 4 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (outer, inner) = (1 + (state >> 24), 1 + (state >> 8) % FUNCTIONS);
            for (kind, function) in [
                (FunctionKind::Enter, outer),
                (FunctionKind::Enter, inner),
                (FunctionKind::Exit, inner),
                (FunctionKind::Exit, outer),
            ] {
                let delta = 50 + (state & 0x3f);
                tsc += u64::from(delta);
                writer.record(&Record::Function {
                    kind,
                    function,
                    delta,
                })?;
            }
        }
    }
    writer.into_inner().flush()?;
    Ok(())
}
