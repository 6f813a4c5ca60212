//! Measures the speed of reading FDR logs: a synthetic log of eight million calls (64 MB), once
//! from memory and once from a file.
//!
//! `cargo run --release -p xray-trace --example fdr_speed`

#![expect(clippy::print_stdout, reason = "this is a program that measures")]

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write as _};
use std::time::Instant;

use xray_trace::llvm::fdr::{Body, Events, FunctionKind, Reader, Record, Writer};
use xray_trace::llvm::header::LogType;
use xray_trace::llvm::{Header, Mode};

const BUFFERS: i32 = 4000;
/// Entries and exits in a buffer, which has 16 KiB like the runtime's.
const EVENTS: u32 = 2000;

fn main() -> Result<(), Box<dyn Error>> {
    let log = log()?;
    println!("log: {} bytes", log.len());
    let path = std::env::temp_dir().join(format!("fdr_speed.{}", std::process::id()));
    File::create(&path)?.write_all(&log)?;
    for _ in 0..3 {
        measure("records from memory", || records(&log[..]))?;
        measure("events from memory", || events(&log[..]))?;
        measure("events from a file", || events(File::open(&path)?))?;
    }
    std::fs::remove_file(&path)?;
    Ok(())
}

fn log() -> Result<Vec<u8>, Box<dyn Error>> {
    let mut writer = Writer::new(Vec::new(), Header::new(LogType::Fdr, 5, 1_000_000_000))?;
    for buffer in 0..BUFFERS {
        let size = 64 + 8 * u64::from(EVENTS);
        writer.record(&Record::BufferExtents { size })?;
        writer.record(&Record::NewBuffer { tid: buffer % 8 })?;
        writer.record(&Record::WallTime {
            seconds: 1,
            micros: 0,
        })?;
        writer.record(&Record::Pid { pid: 1 })?;
        writer.record(&Record::NewCpu {
            cpu: 0,
            tsc: u64::from(buffer.unsigned_abs()) << 32,
        })?;
        for event in 0..EVENTS {
            let kind = if event % 4 < 2 {
                FunctionKind::Enter
            } else {
                FunctionKind::Exit
            };
            writer.record(&Record::Function {
                kind,
                function: 1 + (event >> 2) % 500,
                delta: 20 + event % 7,
            })?;
        }
    }
    Ok(writer.into_inner())
}

fn records(input: impl Read) -> Result<(u64, u64), Box<dyn Error>> {
    let mut reader = Reader::new(input, Mode::Strict)?;
    let (mut count, mut sum) = (0, 0_u64);
    while let Some(item) = reader.next()? {
        if let Record::Function { delta, .. } = item.record {
            count += 1;
            sum = sum.wrapping_add(delta.into());
        }
    }
    Ok((count, sum))
}

fn events(input: impl Read) -> Result<(u64, u64), Box<dyn Error>> {
    let mut events = Events::new(input, Mode::Strict)?;
    let (mut count, mut sum) = (0, 0_u64);
    while let Some(event) = events.next()? {
        if let Body::Call { function, .. } = event.body {
            count += 1;
            sum = sum.wrapping_add(event.tsc ^ u64::from(function));
        }
    }
    Ok((count, sum))
}

fn measure(
    what: &str,
    run: impl FnOnce() -> Result<(u64, u64), Box<dyn Error>>,
) -> Result<(), Box<dyn Error>> {
    let start = Instant::now();
    let (count, sum) = run()?;
    let nanos = start.elapsed().as_nanos();
    let rate = u128::from(count) * 1000 / nanos.max(1);
    println!("{what}: {count} events, {rate} million a second (check {sum:x})");
    Ok(())
}
