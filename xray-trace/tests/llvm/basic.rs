//! Basic mode in every version and byte order, and damaged.

use proptest::prelude::*;
use xray_trace::llvm::basic::{Owner, Reader, Record};
use xray_trace::llvm::fdr::FunctionKind;
use xray_trace::llvm::header::LogType;
use xray_trace::llvm::{ByteOrder, Error, Header, Mode};

use crate::common::llvm_xray;

fn log(version: u16, order: ByteOrder, records: &[Record]) -> Vec<u8> {
    let mut header = Header::new(LogType::Basic, version, 3_900_000_000);
    header.order = order;
    header.free_form = [0xaa; 16];
    let mut bytes = Vec::new();
    header.write(&mut bytes).unwrap();
    for record in records {
        record.write(order, &mut bytes).unwrap();
    }
    bytes
}

fn owner(version: u16) -> Owner {
    Owner {
        function: 1,
        tid: 2590,
        pid: (version == 3).then_some(2589),
    }
}

fn call(version: u16) -> [Record; 3] {
    let owner = owner(version);
    let function = |kind, tsc| Record::Function {
        kind,
        cpu: 7,
        tsc,
        owner,
    };
    [
        function(FunctionKind::EnterArg, 2_033_505_343_905_936),
        Record::Argument { value: 67, owner },
        function(FunctionKind::Exit, 2_033_505_343_936_752),
    ]
}

fn read(bytes: &[u8]) -> (Vec<Record>, Option<Error>) {
    let reader = match Reader::new(bytes, Mode::Strict) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut records = Vec::new();
    for record in reader {
        match record {
            Ok((_, record)) => records.push(record),
            Err(error) => return (records, Some(error)),
        }
    }
    (records, None)
}

#[test]
fn an_argument_is_read_in_every_version() {
    for version in 1..=3 {
        let records = call(version);
        for order in [ByteOrder::Little, ByteOrder::Big] {
            let (seen, error) = read(&log(version, order, &records));
            assert!(error.is_none(), "{error:?}");
            assert_eq!(seen, records);
        }
        let bytes = log(version, ByteOrder::Little, &records);
        let yaml = llvm_xray(&["convert", "-f", "yaml"], &bytes).unwrap();
        let process = if version == 3 { "process: 2589, " } else { "" };
        let line = format!(
            "func-id: 1, function: '1', args: [ 67 ], cpu: 7, thread: 2590, {process}kind: function-enter-arg"
        );
        assert!(yaml.contains(&line), "{yaml}");
    }
}

#[test]
fn the_bytes_are_those_of_the_runtime() {
    let bytes = log(3, ByteOrder::Little, &call(3));
    assert_eq!(bytes[..8], [3, 0, 0, 0, 3, 0, 0, 0]);
    let argument = &bytes[64..96];
    let expected: [u8; 32] = [
        1, 0, 0, 0, 1, 0, 0, 0, 0x1e, 0x0a, 0, 0, 0x1d, 0x0a, 0, 0, 67, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0,
    ];
    assert_eq!(argument, expected);
}

#[test]
fn a_log_cut_at_any_byte_gives_what_stands_in_front() {
    let whole = log(3, ByteOrder::Little, &call(3));
    for len in 0..whole.len() {
        let (records, error) = read(&whole[..len]);
        assert_eq!(error.is_none(), len >= 32 && len % 32 == 0, "{len}");
        assert_eq!(records, call(3)[..len.saturating_sub(32) / 32]);
    }
    let error = read(&whole[..70]).1.unwrap();
    assert_eq!(
        error.to_string(),
        "function record at offset 64: the file ends inside it, after 6 of 32 bytes"
    );
}

/// Reads a log whose record `index` has another byte at `at`.
#[track_caller]
fn check(index: usize, at: usize, byte: u8, message: &str, saved: &[usize]) {
    let mut bytes = log(3, ByteOrder::Little, &call(3));
    bytes[32 + index * 32 + at] = byte;
    let (records, error) = read(&bytes);
    assert_eq!(
        (error.unwrap().to_string(), records.len()),
        (message.into(), index)
    );
    let mut reader = Reader::new(&bytes[..], Mode::Salvage).unwrap();
    let records = reader.by_ref().map(|record| record.unwrap().1);
    let expected = saved.iter().map(|index| call(3)[*index]);
    assert!(records.eq(expected));
    assert!(reader.skipped().kept()[0].to_string().ends_with(message));
}

#[test]
fn wrong_records_are_named_and_left_out_alone() {
    check(
        2,
        3,
        4,
        "record at offset 96: unknown kind of function record 4",
        &[0, 1],
    );
    check(
        1,
        0,
        9,
        "record at offset 64: unknown record type 9",
        &[0, 2],
    );
    check(
        1,
        4,
        2,
        "argument record at offset 64: it belongs to function 2 in thread 2590 of process 2589, \
         but follows an entry of function 1 in thread 2590 of process 2589",
        &[0, 2],
    );
    let message =
        "argument record at offset 64: it does not follow a function entry that it belongs to";
    let mut bytes = log(3, ByteOrder::Little, &call(3));
    bytes[32 + 3] = 1;
    assert_eq!(read(&bytes).1.unwrap().to_string(), message);
    let argument_first = log(3, ByteOrder::Little, &call(3)[1..]);
    assert!(matches!(
        read(&argument_first).1,
        Some(Error::Argument { offset: 32 })
    ));
}

#[test]
fn a_future_version_is_named() {
    let message = read(&log(9, ByteOrder::Little, &[])).1.unwrap().to_string();
    assert_eq!(
        message,
        "version 9 of the basic-mode log is not supported; the newest supported version is 3"
    );
}

#[test]
fn frequency_0_is_unknown() {
    let header = Header::new(LogType::Basic, 3, 0);
    assert_eq!(header.frequency(), None);
    assert_eq!(
        Header::new(LogType::Basic, 3, 5).frequency().unwrap().get(),
        5
    );
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_fail_or_loop(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut all = log(3, ByteOrder::Little, &[]);
        all.extend(&bytes);
        let count = Reader::new(&all[..], Mode::Salvage).unwrap().map(Result::unwrap).count();
        prop_assert!(count <= bytes.len() / 32);
    }
}
