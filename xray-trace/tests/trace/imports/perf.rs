//! Traces of `perf record`.

use proptest::prelude::*;
use xray_trace::llvm::{Format, Mode};

use super::{notes, opened_in, steps};

/// Events of two functions, one of which has no event of its return.
const NAMES: [&str; 4] = [
    "probe_server:handle",
    "probe_server:handle__return",
    "probe_server:parse",
    "cycles:u",
];
/// `PERF_SAMPLE_IP | TID | TIME | ID | CPU | PERIOD | RAW | IDENTIFIER`
const PARTS: u64 = 1 | 1 << 1 | 1 << 2 | 1 << 6 | 1 << 7 | 1 << 8 | 1 << 10 | 1 << 16;
const HEADER: usize = 104;
const ATTRIBUTE: usize = 128;

fn record(kind: u32, body: &[u8]) -> Vec<u8> {
    let size = u16::try_from(8 + body.len()).unwrap();
    let head = [&kind.to_le_bytes()[..], &[0; 2], &size.to_le_bytes()];
    [&head.concat(), body].concat()
}

/// A sample of the event at this place, of the thread `tid` of the process 7.
fn sample(event: u64, tid: u32, time: u64, cpu: u32) -> Vec<u8> {
    let id = (100 + event).to_le_bytes();
    let mut body = id.to_vec();
    body.extend(0x1234_u64.to_le_bytes());
    for word in [7, tid] {
        body.extend(word.to_le_bytes());
    }
    body.extend(time.to_le_bytes());
    body.extend(id);
    body.extend(u64::from(cpu).to_le_bytes());
    // The period, and raw data behind its length.
    body.extend(1_u64.to_le_bytes());
    body.extend([4, 0, 0, 0, 1, 2, 3, 4]);
    record(9, &body)
}

fn comm(tid: u32, name: &str) -> Vec<u8> {
    let mut body = [7_u32, tid].map(u32::to_le_bytes).concat();
    body.extend(name.bytes());
    body.resize(8 + 16, 0);
    record(3, &body)
}

/// A file with these records and names of events.
fn file(names: &[&str], parts: u64, records: &[Vec<u8>]) -> Vec<u8> {
    let data = records.concat();
    let attributes = names.len() * (ATTRIBUTE + 16);
    let data_at = HEADER + attributes;
    let mut bytes = b"PERFILE2".to_vec();
    let mut words = |words: &[u64]| {
        words
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()))
    };
    words(&[HEADER as u64, (ATTRIBUTE + 16) as u64]);
    words(&[HEADER as u64, attributes as u64]);
    words(&[data_at as u64, data.len() as u64, 0, 0]);
    // The name of the host, the version, and the events.
    words(&[1 << 3 | 1 << 5 | 1 << 12, 0, 0, 0]);
    let attribute = |bytes: &mut Vec<u8>| {
        let at = bytes.len();
        bytes.extend([0; 24]);
        bytes.extend(parts.to_le_bytes());
        bytes.resize(at + ATTRIBUTE, 0);
    };
    for _ in names {
        attribute(&mut bytes);
        bytes.extend([0; 16]);
    }
    bytes.extend(data);
    let mut described = (names.len() as u32).to_le_bytes().to_vec();
    described.extend((ATTRIBUTE as u32).to_le_bytes());
    for (event, name) in (0_u64..).zip(names) {
        attribute(&mut described);
        let length = (name.len() + 1).next_multiple_of(64);
        described.extend(1_u32.to_le_bytes());
        described.extend((length as u32).to_le_bytes());
        let at = described.len();
        described.extend(name.bytes());
        described.resize(at + length, 0);
        described.extend((100 + event).to_le_bytes());
    }
    let described_at = (bytes.len() + 3 * 16) as u64;
    for place in [[0, 0], [0, 0], [described_at, described.len() as u64]] {
        place
            .iter()
            .for_each(|word| bytes.extend(word.to_le_bytes()));
    }
    bytes.extend(described);
    bytes
}

fn records() -> Vec<Vec<u8>> {
    vec![
        comm(7, "server"),
        comm(8, "worker"),
        // Buffers of two processors, one after the other.
        sample(0, 7, 1000, 0),
        sample(2, 7, 1100, 0),
        sample(1, 7, 2000, 0),
        record(68, &[]),
        sample(1, 8, 1600, 1),
        // Data of another kind behind its record.
        [record(71, &5_u64.to_le_bytes()), vec![0xff; 5]].concat(),
        sample(0, 8, 1500, 1),
        sample(3, 8, 1500, 1),
        record(2, &[1_u64, 3].map(u64::to_le_bytes).concat()),
        record(13, &3_u64.to_le_bytes()),
        sample(0, 9, 1700, 1),
    ]
}

fn error(bytes: &[u8]) -> String {
    opened_in(bytes, Mode::Strict).unwrap_err().to_string()
}

#[test]
fn calls_between_probes_are_read() {
    let bytes = file(&NAMES, PARTS, &records());
    let back = opened_in(&bytes, Mode::Strict).unwrap();
    assert_eq!(back.format, Format::PerfData);
    let mut found = steps(&back.trace);
    found.sort();
    let expected = [
        "7/7 1000 +handle",
        "7/7 2000 -handle",
        "7/8 1500 +handle",
        "7/8 1600 -handle",
        "7/9 1700 +handle",
        "7/9 1700 -handle closed",
    ];
    assert_eq!(found, expected);
    assert_eq!(notes(&back), ["2 samples that are no calls"]);
    // The kernel counts lost samples in both kinds of records.
    assert_eq!(back.trace.totals().lost, 3);
    let threads = back.trace.threads().iter();
    let mut threads: Vec<_> = threads.map(|one| (one.tid, &*one.name)).collect();
    threads.sort_unstable();
    // The last one has the name of its process.
    assert_eq!(threads, [(7, "server"), (8, "worker"), (9, "server")]);
    let module = back.trace.modules().first().unwrap();
    assert_eq!(module.path, "server");
}

#[test]
fn files_that_cannot_be_read_are_refused_with_the_reason() {
    let good = file(&NAMES, PARTS, &records());
    let changed = |at: usize, bytes: &[u8]| {
        let mut good = good.clone();
        good[at..at + bytes.len()].copy_from_slice(bytes);
        good
    };
    for (bytes, why) in [
        (good[..60].to_vec(), "it ends within its header"),
        (
            changed(8, &16_u64.to_le_bytes()),
            "it was written to a pipe",
        ),
        (
            changed(48, &0_u64.to_le_bytes()),
            "perf has not finished it",
        ),
        (
            changed(72, &0_u64.to_le_bytes()),
            "it has no names of events",
        ),
        (
            changed(16, &8_u64.to_le_bytes()),
            "its attributes are too short",
        ),
        (changed(32, &0_u64.to_le_bytes()), "other events than names"),
        (
            good[..good.len() - 40].to_vec(),
            "its names of events are cut",
        ),
        (
            file(&NAMES[..1], PARTS, &records()),
            "`perf probe -x PROGRAM FUNCTION%return`",
        ),
        (
            file(&NAMES, PARTS & !(1 << 16 | 1 << 6), &records()),
            "its events cannot be told apart",
        ),
        (
            file(&NAMES, PARTS & !(1 << 2), &records()),
            "its samples have no threads, or no times",
        ),
        (
            file(&NAMES, PARTS, &[sample(50, 7, 1, 0)]),
            "a sample of an event without a name",
        ),
        (
            file(&NAMES, PARTS, &[record(9, &[1])]),
            "record at offset 680: a record is too short",
        ),
        (
            file(&NAMES, PARTS, &[vec![9, 0, 0, 0, 0, 0, 7, 0]]),
            "is shorter than its head",
        ),
    ] {
        let error = error(&bytes);
        assert!(error.contains(why), "{why}: {error}");
    }
    // Only the damaged record is left out.
    let mut records = records();
    records.insert(5, record(9, &[1]));
    let bytes = file(&NAMES, PARTS, &records);
    let back = opened_in(&bytes, Mode::Salvage).unwrap();
    let whole = opened_in(&good, Mode::Strict).unwrap();
    assert_eq!(steps(&back.trace), steps(&whole.trace));
    assert!(
        notes(&back)[0].starts_with("1 left out: record at offset"),
        "{:?}",
        notes(&back)
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn cut_and_changed_files_are_an_error_or_a_trace(
        cut in any::<prop::sample::Index>(),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
    ) {
        let mut bytes = file(&NAMES, PARTS, &records());
        for (place, byte) in &changes {
            let place = place.index(bytes.len());
            bytes[place] = *byte;
        }
        bytes.truncate(cut.index(bytes.len()) + 1);
        for mode in [Mode::Strict, Mode::Salvage] {
            if let Ok(back) = opened_in(&bytes, mode) {
                let _ = steps(&back.trace);
            }
        }
    }
}
