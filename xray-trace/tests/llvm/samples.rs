//! The logs of upstream's `convert-*-to-yaml.txt` (llvm/test/tools/llvm-xray/X86/Inputs), built
//! record by record. Four equal upstream's to the last byte, including the uninitialised memory
//! that the runtime wrote.

use xray_trace::llvm::basic::{self, Owner};
use xray_trace::llvm::fdr::{FunctionKind, Record};
use xray_trace::llvm::header::LogType;
use xray_trace::llvm::{ByteOrder, Header};

use FunctionKind::{Enter, EnterArg, Exit, TailExit};

use crate::common::*;

/// A call, or an argument that follows the entry of its call.
#[derive(Clone, Copy)]
enum Item {
    Call(FunctionKind, i32, u64),
    Argument(i32, u64),
}

use Item::{Argument, Call};

/// A basic-mode log of one thread.
fn basic_log(
    (version, frequency): (u16, u64),
    cpu: u8,
    tid: u32,
    pid: Option<u32>,
    items: &[Item],
) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = Header::new(LogType::Basic, version, frequency);
    header.write(&mut bytes).unwrap();
    for item in items {
        let owner = |function| Owner { function, tid, pid };
        let record = match *item {
            Call(kind, function, tsc) => basic::Record::Function {
                kind,
                cpu,
                tsc,
                owner: owner(function),
            },
            Argument(function, value) => basic::Record::Argument {
                value,
                owner: owner(function),
            },
        };
        record.write(ByteOrder::Little, &mut bytes).unwrap();
    }
    bytes
}

fn fdr_header(version: u16, frequency: u64, buffer: u64) -> Header {
    let mut header = Header::new(LogType::Fdr, version, frequency);
    header.free_form[..8].copy_from_slice(&buffer.to_le_bytes());
    header
}

/// Sets bytes of a log that were uninitialised memory.
fn with(mut log: Vec<u8>, places: &[(usize, &[u8])]) -> Vec<u8> {
    for (at, bytes) in places {
        log[*at..][..bytes.len()].copy_from_slice(bytes);
    }
    log
}

pub(crate) fn naive_log_simple() -> Vec<u8> {
    let items = [
        Call(Enter, 3, 3_315_356_841_453_914),
        Call(Enter, 2, 3_315_356_841_454_542),
        Call(Exit, 2, 3_315_356_841_454_670),
        Call(Enter, 1, 3_315_356_841_454_762),
        Call(Exit, 1, 3_315_356_841_454_802),
        Call(Exit, 3, 3_315_356_841_494_828),
    ];
    let log = basic_log((1, 2_601_000_000), 37, 84697, None, &items);
    let free = [
        0xc8, 0x5d, 0x66, 0xf8, 0xae, 0x7f, 0, 0, 0x18, 5, 0x40, 0, 0, 0, 0, 0,
    ];
    with(log, &[(4, &[0xaf, 0x7f]), (16, &free)])
}

pub(crate) fn basic_log_arg1_version_3() -> Vec<u8> {
    let items = [
        Call(Enter, 3, 2_033_303_630_902_004),
        Call(Exit, 3, 2_033_403_115_246_844),
        Call(Enter, 2, 2_033_490_200_702_516),
        Call(Exit, 2, 2_033_504_122_687_120),
        Call(EnterArg, 1, 2_033_505_343_905_936),
        Argument(1, 67),
        Call(Exit, 1, 2_033_505_343_936_752),
    ];
    let log = basic_log((3, 3_900_000_000), 0, 2590, Some(2590), &items);
    let free = [0, 0x20, 0, 0, 0, 0, 0, 0, 0x31, 0xb6, 0x41];
    with(log, &[(4, &[0xff]), (16, &free)])
}

/// One call with its argument, and zeros up to the end of the buffer.
pub(crate) fn fdr_log_arg1() -> Vec<u8> {
    let tsc = 18_828_908_666_540_172;
    let records = [
        Record::NewBuffer { tid: 14648 },
        Record::WallTime {
            seconds: 1_452_786,
            micros: 250_689,
        },
        Record::NewCpu { cpu: 49, tsc },
        Record::TscWrap { tsc },
        enter(1, 3146),
        Record::CallArgument { value: 1 },
        exit(1, 52286),
        Record::EndOfBuffer,
    ];
    let mut bytes = log(fdr_header(1, 3_500_000_000, 256), &records);
    bytes.resize(32 + 256, 0);
    let memory: [(usize, &[u8]); 4] = [
        (25, &[0xdd, 0x63]),
        (89, &[0x42]),
        (113, &[0x4d, 0x42]),
        (129, &[0xff; 3]),
    ];
    with(bytes, &memory)
}

/// A buffer with the first records of the runtime of version 3.
fn buffer_v3(tid: i32, wall: (u64, u32), cpu: u16, tsc: u64, events: &[Rec]) -> Vec<u8> {
    let (seconds, micros) = wall;
    let mut records = vec![
        Record::NewBuffer { tid },
        Record::WallTime { seconds, micros },
        Record::Pid { pid: tid },
        Record::NewCpu { cpu, tsc },
        Record::NewCpu { cpu, tsc },
        Record::TscWrap { tsc },
    ];
    records.extend_from_slice(events);
    records.insert(0, extents(&records));
    log(fdr_header(3, 3_900_000_000, 16384), &records)
}

pub(crate) fn fdr_log_version_3() -> Vec<u8> {
    let events = [
        enter(1, 0),
        exit(1, 50004),
        enter(2, 732_998_410),
        exit(2, 28396),
        enter(1, 786_863_820),
        exit(1, 28904),
    ];
    let tsc = 2_069_294_857_657_498;
    let log = buffer_v3(25190, (609_997, 222_106), 4, tsc, &events);
    with(log, &[(137, &[0xba, 0xad, 0x19, 0xdd, 0x7f])])
}

/// The log of `convert-fdr-log-arg1-version3-to-yaml.txt` and of `fdr-dump-arg1-version-3.txt`.
pub(crate) fn fdr_log_arg1_version_3() -> Vec<u8> {
    let events = [
        enter(3, 0),
        exit(3, 94744),
        enter(2, 1_028_487_290),
        exit(2, 75822),
        Record::TscWrap {
            tsc: 2_034_049_739_853_430,
        },
        enter(1, 0),
        Record::CallArgument { value: 67 },
        exit(1, 24724),
    ];
    buffer_v3(2631, (599_605, 32403), 6, 2_034_042_117_104_344, &events)
}

pub(crate) fn naive_with_arg1_entries() -> Vec<u8> {
    let items = [
        Call(Enter, 1, 22_555_670_288_232_728),
        Call(Exit, 1, 22_555_670_288_334_784),
        Call(EnterArg, 2, 22_555_670_288_335_768),
        Argument(2, 1),
        Call(Exit, 2, 22_555_670_288_365_224),
    ];
    basic_log((2, 3_500_000_000), 17, 8715, None, &items)
}

pub(crate) fn basic_log_version_3() -> Vec<u8> {
    let times = [
        (1, 2_070_767_347_414_784),
        (1, 2_070_767_347_496_472),
        (2, 2_070_768_324_320_264),
        (2, 2_070_768_324_344_100),
        (1, 2_070_768_921_602_152),
        (1, 2_070_768_921_625_968),
        (2, 2_070_769_627_174_140),
        (2, 2_070_769_627_197_624),
    ];
    let kinds = [Enter, Exit].into_iter().cycle();
    let items: Vec<_> = times
        .into_iter()
        .zip(kinds)
        .map(|((function, tsc), kind)| Call(kind, function, tsc))
        .collect();
    basic_log((3, 3_900_000_000), 7, 25518, Some(25518), &items)
}

/// The greatest id, a tail exit, and another processor.
pub(crate) fn fdr_log_version_1() -> Vec<u8> {
    let tsc = 7_238_225_556_407_340;
    let greatest = (1 << 28) - 1;
    let records = [
        Record::NewBuffer { tid: 5 },
        Record::WallTime {
            seconds: 5,
            micros: 5,
        },
        Record::NewCpu { cpu: 5, tsc },
        enter(1, 0),
        exit(1, 6),
        enter(2, 1),
        enter(3, 40),
        exit(3, 50),
        exit(2, 30),
        enter(4, 25),
        enter(5, 25),
        function(TailExit, 5, 25),
        enter(greatest, 10),
        exit(greatest, 10),
        Record::NewCpu {
            cpu: 6,
            tsc: tsc + 342,
        },
        enter(6, 0),
        exit(6, 73),
        Record::EndOfBuffer,
    ];
    let mut bytes = log(fdr_header(1, 5678, 512), &records);
    bytes.resize(32 + 512, 0);
    bytes
}

#[test]
fn the_samples_are_upstreams_to_the_last_byte() {
    for (log, checksum) in [
        (naive_log_simple(), 0xd188_2c0d),
        (basic_log_arg1_version_3(), 0x3682_cd98),
        (fdr_log_arg1(), 0xa456_c806),
        (fdr_log_version_3(), 0x653c_705a),
    ] {
        assert_eq!(crc32fast::hash(&log), checksum, "{log:x?}");
    }
}
