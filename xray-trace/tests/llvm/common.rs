//! Logs in memory, and the results of the readers for them.

use std::process::Command;

use xray_trace::llvm::fdr::{Event, Events, FunctionKind, Reader, Record, Writer};
use xray_trace::llvm::header::LogType;
use xray_trace::llvm::{Error, Header, Mode};

/// A record whose payload is known at compile time.
pub(crate) type Rec = Record<&'static [u8]>;
/// Records with their payloads and offsets.
pub(crate) type Records = Vec<(u64, Record<Vec<u8>>)>;
/// An event with its payload.
pub(crate) type Ev = Event<Vec<u8>>;

pub(crate) fn header(version: u16) -> Header {
    Header::new(LogType::Fdr, version, 3_000_000_000)
}

/// A log of these records.
pub(crate) fn log(header: Header, records: &[Rec]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    for record in records {
        writer.record(record).unwrap();
    }
    writer.into_inner()
}

/// A buffer of version 5, with its extents.
pub(crate) fn buffer(tid: i32, tsc: u64, events: &[Rec]) -> Vec<Rec> {
    let mut records = vec![
        Record::NewBuffer { tid },
        Record::WallTime {
            seconds: 5,
            micros: 7,
        },
        Record::Pid { pid: 11 },
        Record::NewCpu { cpu: 3, tsc },
    ];
    records.extend_from_slice(events);
    records.insert(0, extents(&records));
    records
}

pub(crate) fn extents(records: &[Rec]) -> Rec {
    let size = log(header(5), records).len() - 32;
    Record::BufferExtents { size: size as u64 }
}

pub(crate) fn function(kind: FunctionKind, function: u32, delta: u32) -> Rec {
    Record::Function {
        kind,
        function,
        delta,
    }
}

pub(crate) fn enter(id: u32, delta: u32) -> Rec {
    function(FunctionKind::Enter, id, delta)
}

pub(crate) fn exit(id: u32, delta: u32) -> Rec {
    function(FunctionKind::Exit, id, delta)
}

/// Every record with its offset, and the error that ends them.
pub(crate) fn records(bytes: &[u8]) -> (Records, Option<Error>) {
    let mut reader = match Reader::new(bytes, Mode::Strict) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut records = Vec::new();
    loop {
        match reader.next() {
            Ok(Some(item)) => records.push((item.offset, item.record.map(<[u8]>::to_vec))),
            Ok(None) => return (records, None),
            Err(error) => return (records, Some(error)),
        }
    }
}

/// Every event, and the error that ends them.
pub(crate) fn events(bytes: &[u8]) -> (Vec<Ev>, Option<Error>) {
    match Events::new(bytes, Mode::Strict) {
        Ok(mut events) => rest(&mut events),
        Err(error) => (Vec::new(), Some(error)),
    }
}

/// Every event of an undamaged log.
pub(crate) fn all_events(bytes: &[u8]) -> Vec<Ev> {
    let (events, error) = events(bytes);
    assert!(error.is_none(), "{error:?}");
    events
}

/// The events that can be salvaged, and the skipped parts.
pub(crate) fn salvage(bytes: &[u8]) -> (Vec<Ev>, Vec<String>) {
    let mut events = Events::new(bytes, Mode::Salvage).unwrap();
    let (saved, error) = rest(&mut events);
    assert!(error.is_none(), "{error:?}");
    let skipped = events.skipped().kept().iter();
    (saved, skipped.map(ToString::to_string).collect())
}

pub(crate) fn rest(events: &mut Events<impl std::io::Read>) -> (Vec<Ev>, Option<Error>) {
    let mut all = Vec::new();
    loop {
        match events.next() {
            Ok(Some(event)) => all.push(event.map(<[u8]>::to_vec)),
            Ok(None) => return (all, None),
            Err(error) => return (all, Some(error)),
        }
    }
}

/// Runs `llvm-xray` on a log. Returns its output, or its error message.
pub(crate) fn llvm_xray(args: &[&str], log: &[u8]) -> Result<String, String> {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("log");
    std::fs::write(&file, log).unwrap();
    let output = Command::new("llvm-xray-19").args(args).arg(&file).output();
    let output = output.unwrap_or_else(|error| {
        panic!("cannot run llvm-xray-19 ({error}): install the Debian package llvm-19")
    });
    if output.status.success() {
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    } else {
        Err(String::from_utf8_lossy(&output.stderr).into_owned())
    }
}
