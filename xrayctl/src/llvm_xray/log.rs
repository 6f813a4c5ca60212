//! Loads the records of a log into memory, as LLVM's library does: basic and FDR logs in either
//! byte order, and YAML.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Cursor, Read as _};
use std::sync::Arc;

use xray_trace::llvm::fdr::Reader;
use xray_trace::llvm::header::{HEADER_LEN, Header, LogType};
use xray_trace::llvm::yaml::{self, Kind, TraceHeader};
use xray_trace::llvm::{Error, Mode};

use super::failure::Failure;
use super::fdr;
use super::record::Record;

/// Bytes of a record of a basic log.
const RECORD_LEN: usize = 32;

/// A log in memory.
#[derive(Debug)]
pub(super) struct Log {
    pub(super) header: TraceHeader,
    pub(super) records: Vec<Record>,
}

/// The order of the records in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    /// As in the file; an FDR log has one thread after the other.
    File,
    /// By their counters.
    Time,
}

/// The bytes of a file, as many as its size says: none of a pipe or a device.
pub(super) fn read(path: &OsStr) -> Result<Vec<u8>, Failure> {
    let read = || -> io::Result<Vec<u8>> {
        let file = File::open(path)?;
        let size = file.metadata()?.len();
        let mut bytes = Vec::new();
        file.take(size).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    read().map_err(|error| match error.kind() {
        io::ErrorKind::IsADirectory => {
            let path = path.to_string_lossy();
            Failure::new(format!("Cannot read log from '{path}'"))
        }
        _ => Failure::of_input(&error),
    })
}

// === impl Log ===

impl Log {
    /// Loads a file.
    pub(super) fn load(path: &OsStr, records: Order) -> Result<Self, Failure> {
        let bytes = Arc::<[u8]>::from(read(path)?);
        if bytes.len() < 4 {
            let path = path.to_string_lossy();
            return Err(Failure::new(format!("File '{path}' too small for XRay.")));
        }
        // If the file makes no sense in the first byte order, the failure is of the second.
        let log = Self::parse(&bytes, u16::from_le_bytes);
        let mut log = log.or_else(|_| Self::parse(&bytes, u16::from_be_bytes))?;
        if records == Order::Time {
            log.records.sort_by_key(|record| record.tsc);
        }
        Ok(log)
    }

    fn parse(bytes: &Arc<[u8]>, number: fn([u8; 2]) -> u16) -> Result<Self, Failure> {
        let [version, log] = [[bytes[0], bytes[1]], [bytes[2], bytes[3]]].map(number);
        let (what, newest) = match log {
            0 => ("Basic/Naive", 3),
            1 => ("FDR", 5),
            _ => return Self::of_yaml(bytes),
        };
        if !(1..=newest).contains(&version) {
            return Err(Failure::new(format!(
                "Unsupported version for {what} Mode logging: {version}"
            )));
        }
        if log == 0 {
            Self::of_basic(bytes)
        } else {
            Self::of_fdr(bytes)
        }
    }

    fn of_basic(bytes: &[u8]) -> Result<Self, Failure> {
        if bytes.len() < HEADER_LEN {
            return Err(Failure::new("Not enough bytes for an XRay log."));
        }
        if bytes.len() == HEADER_LEN || !bytes.len().is_multiple_of(RECORD_LEN) {
            return Err(Failure::new("Invalid-sized XRay data."));
        }
        let header = Header::parse(bytes, LogType::Basic);
        let header = header.map_err(|error| Failure::new(error.to_string()))?;
        let order = header.order;
        let mut records = Vec::<Record>::new();
        for (number, bytes) in bytes.chunks_exact(RECORD_LEN).enumerate().skip(1) {
            let offset = number * RECORD_LEN;
            let unknown = |kind: u16, at: usize| {
                let at = offset + at;
                Failure::new(format!("Unknown record type '{kind}' at offset {at}."))
            };
            let function = order.i32(bytes, 4);
            match order.u16(bytes, 0) {
                0 => records.push(Record {
                    cpu: bytes[2].into(),
                    kind: match bytes[3] {
                        0 => Kind::Enter,
                        1 => Kind::Exit,
                        2 => Kind::TailExit,
                        3 => Kind::EnterArg,
                        kind => return Err(unknown(kind.into(), 4)),
                    },
                    function,
                    tsc: order.u64(bytes, 8),
                    tid: order.u32(bytes, 16),
                    pid: order.u32(bytes, 20),
                    ..Record::default()
                }),
                1 => {
                    let (tid, pid) = (order.u32(bytes, 8), order.u32(bytes, 12));
                    let owner = records.last_mut().filter(|owner| {
                        owner.function == function
                            && owner.tid == tid
                            && (header.version < 3 || owner.pid == pid)
                    });
                    let Some(owner) = owner else {
                        let at = offset + 16;
                        return Err(Failure::new(format!(
                            "Corrupted log, found arg payload following non-matching \
                             function+thread record. Record at offset {at}"
                        )));
                    };
                    owner.args.push(order.u64(bytes, 16));
                }
                kind => return Err(unknown(kind, 2)),
            }
        }
        Ok(Self {
            header: trace_header(&header),
            records,
        })
    }

    fn of_fdr(bytes: &[u8]) -> Result<Self, Failure> {
        if bytes.len() < HEADER_LEN {
            return Err(Failure::new("Not enough bytes for an XRay FDR log."));
        }
        let reader = Reader::new(bytes, Mode::Strict);
        let reader = reader.map_err(|error| Failure::new(error.to_string()))?;
        Ok(Self {
            header: trace_header(reader.header()),
            records: fdr::records(bytes, reader.layout())?,
        })
    }

    fn of_yaml(bytes: &Arc<[u8]>) -> Result<Self, Failure> {
        let failure = |_: Error| Failure::new("Failed loading YAML Data.");
        let mut reader =
            yaml::Reader::new(Cursor::new(Arc::clone(bytes)), Mode::Strict).map_err(failure)?;
        let header = *reader.header();
        let mut records = Vec::new();
        for record in &mut reader {
            let record = record.map_err(failure)?;
            records.push(Record {
                record_type: record.record_type,
                cpu: record.cpu,
                kind: record.kind,
                function: record.function_id,
                tsc: record.tsc,
                tid: record.thread,
                pid: record.process,
                args: record.args.into_owned(),
                data: record.data.into_owned(),
            });
        }
        if header.version != 1 {
            let version = header.version;
            return Err(Failure::new(format!(
                "Unsupported XRay file version: {version}"
            )));
        }
        Ok(Self { header, records })
    }
}

fn trace_header(header: &Header) -> TraceHeader {
    TraceHeader {
        version: header.version,
        log: match header.log {
            LogType::Basic => 0,
            LogType::Fdr => 1,
        },
        constant_tsc: header.constant_tsc,
        nonstop_tsc: header.nonstop_tsc,
        cycle_frequency: header.cycle_frequency,
    }
}
