//! Files return the data that was written, up to any cut. Damaged ones give errors with the place
//! of the damage.

use std::sync::OnceLock;

use crate::common::{
    Enter, Exit, TailExit, anchor, any_events, blocks, call, call_with, function, lost, module,
    process, thread, trace,
};
use proptest::prelude::*;
use xray_trace::container::{
    Completeness, End, HEADER_LEN, Item, ReadError, Reader, SectionKind, Writer,
};
use xray_trace::model::{
    Birth, DutyWindow, Event, EventType, FilterNote, FunctionId, Gap, GapCause, Lifetime, ModuleId,
    Origin, ProcessId, Suppression, ThreadId, Ticks, Trace,
};

fn items(bytes: &[u8]) -> Result<(Vec<Item>, Completeness), ReadError> {
    let mut reader = Reader::new(bytes)?;
    let mut items = Vec::new();
    while let Some(item) = reader.next_item()? {
        items.push(item);
    }
    Ok((items, reader.completeness().unwrap()))
}

fn events(items: &[Item]) -> Vec<Event> {
    let blocks = items.iter().filter_map(|item| match item {
        Item::Block(block) => Some(block),
        _ => None,
    });
    blocks
        .flat_map(|block| block.events())
        .map(|event| event.unwrap())
        .collect()
}

fn sample_events() -> Vec<Event> {
    let mut events = vec![
        call(1000, 0, Enter),
        call_with(1100, 1, 0xdead_beef),
        lost(1200, 17),
    ];
    for at in 0..20 {
        events.extend([
            call(2000 + at * 50, 2, Enter),
            call(2020 + at * 50, 2, Exit),
        ]);
    }
    events.extend([call(5_000_000, 1, TailExit), call(1 << 45, 0, Exit)]);
    events
}

const ORIGIN: Origin = Origin {
    parent: 77,
    by: Birth::Exec,
    unrecorded_ns: 1 << 40,
};

/// The later one comes first.
const LIFETIMES: [Lifetime; 2] = [
    Lifetime {
        module: ModuleId(1),
        loaded: Some(Ticks(4000)),
        unloaded: None,
    },
    Lifetime {
        module: ModuleId(1),
        loaded: None,
        unloaded: Some(Ticks(3000)),
    },
];

/// Not in the order of a trace.
const SUPPRESSIONS: [Suppression; 2] = [
    Suppression {
        function: FunctionId(2),
        process: ProcessId(0),
        from: Ticks(3000),
        until: None,
        recorded: 0,
        calls: u64::MAX,
    },
    Suppression {
        function: FunctionId(1),
        process: ProcessId(0),
        from: Ticks(1000),
        until: Some(Ticks(2000)),
        recorded: 20,
        calls: 4_100_000,
    },
];

/// The later one comes first.
const DUTY: [DutyWindow; 2] = [
    DutyWindow {
        process: ProcessId(0),
        from: Ticks(3000),
        until: Ticks(3010),
        stands_for: 2000,
    },
    DutyWindow {
        process: ProcessId(0),
        from: Ticks(1000),
        until: Ticks(1010),
        stands_for: 2000,
    },
];

/// The later one comes first.
fn filters() -> [FilterNote; 2] {
    [(Some(Ticks(5)), ""), (None, "--min-duration 10us")].map(|(since, filter)| FilterNote {
        process: ProcessId(0),
        since,
        filter: filter.to_owned(),
    })
}

/// A file with every kind of section, and several blocks.
fn sample() -> &'static [u8] {
    static SAMPLE: OnceLock<Vec<u8>> = OnceLock::new();
    SAMPLE.get_or_init(|| {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer.add(&process(0)).unwrap();
        writer.add(&module(0, 0)).unwrap();
        writer.add(&module(1, 0)).unwrap();
        for (id, name) in [(0, "main"), (1, "work"), (2, "leaf")] {
            writer.add(&function(id, id % 2, name)).unwrap();
        }
        writer.add(&thread(0, 0)).unwrap();
        writer.add(&anchor(1000, 500)).unwrap();
        for block in blocks(0, &sample_events(), 16) {
            writer.block(&block).unwrap();
        }
        writer.lost(ThreadId(0), 5).unwrap();
        LIFETIMES
            .iter()
            .for_each(|lifetime| writer.add(lifetime).unwrap());
        writer.add(&anchor(1 << 46, 1 << 45)).unwrap();
        writer.origin(ProcessId(0), ORIGIN).unwrap();
        SUPPRESSIONS
            .iter()
            .for_each(|rest| writer.add(rest).unwrap());
        DUTY.iter().for_each(|window| writer.add(window).unwrap());
        filters().iter().for_each(|note| writer.add(note).unwrap());
        let totals = writer.totals();
        assert_eq!(
            totals,
            End {
                calls: 44,
                lost: 22,
                blocks: 3
            }
        );
        writer.end(&totals).unwrap();
        assert_eq!(writer.written(), writer.get_ref().len() as u64);
        writer.into_inner()
    })
}

#[test]
fn everything_written_is_read() {
    let (read, completeness) = items(sample()).unwrap();
    assert_eq!(completeness, Completeness::Complete);
    assert_eq!(read[0], Item::Process(process(0)));
    assert_eq!(read[2], Item::Module(module(1, 0)));
    assert_eq!(read[4], Item::Function(function(1, 1, "work")));
    assert_eq!(read[6], Item::Thread(thread(0, 0)));
    assert_eq!(read[7], Item::Anchor(anchor(1000, 500)));
    assert_eq!(events(&read), sample_events());
    assert_eq!(
        read[11],
        Item::Lost {
            thread: ThreadId(0),
            events: 5
        }
    );
    let process = ProcessId(0);
    let origin = ORIGIN;
    assert_eq!(read[15], Item::Origin { process, origin });
    assert_eq!(
        read[22],
        Item::End(End {
            calls: 44,
            lost: 22,
            blocks: 3
        })
    );
}

#[test]
fn times_of_modules_come_back_in_order() {
    let (read, _) = items(sample()).unwrap();
    let written = LIFETIMES.map(Item::Lifetime);
    assert_eq!(read[12..14], written);
    let trace = Trace::read(sample()).unwrap();
    let again = Trace::read(trace.write(Vec::new(), &[]).unwrap().as_slice()).unwrap();
    for trace in [trace, again] {
        assert_eq!(trace.coverage().lifetimes, [LIFETIMES[1], LIFETIMES[0]]);
    }
}

#[test]
fn unrecorded_times_come_back_in_order() {
    let (read, _) = items(sample()).unwrap();
    assert_eq!(read[16..18], SUPPRESSIONS.map(Item::Suppression));
    assert_eq!(read[18..20], DUTY.map(Item::Duty));
    assert_eq!(read[20..22], filters().map(Item::Filter));
    let trace = Trace::read(sample()).unwrap();
    let again = Trace::read(trace.write(Vec::new(), &[]).unwrap().as_slice()).unwrap();
    let [later, former] = filters();
    for trace in [trace, again] {
        assert_eq!(
            trace.coverage().suppressions,
            [SUPPRESSIONS[1], SUPPRESSIONS[0]]
        );
        assert_eq!(trace.coverage().duty, [DUTY[1], DUTY[0]]);
        assert_eq!(trace.coverage().filters, [former.clone(), later.clone()]);
    }
}

/// Times that run backwards or are out of range are read; a text that is too long is not.
#[test]
fn oversized_tables_of_unrecorded_times_are_refused() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for from in (0..(1 << 16) + 1).map(Ticks) {
        // A repeated entry counts once.
        for _ in 0..2 {
            writer
                .add(&Suppression {
                    from,
                    ..SUPPRESSIONS[0]
                })
                .unwrap();
            writer.add(&DutyWindow { from, ..DUTY[0] }).unwrap();
            let [filter, _] = filters();
            let since = Some(from);
            writer.add(&FilterNote { since, ..filter }).unwrap();
            let gap = Gap {
                process: ProcessId(0),
                from: None,
                until: from,
                cause: GapCause::NoDaemon,
            };
            writer.add(&gap).unwrap();
        }
    }
    let mut bytes = writer.into_inner();
    let trace = Trace::read(bytes.as_slice()).unwrap();
    let kept = [
        trace.coverage().suppressions.len(),
        trace.coverage().duty.len(),
        trace.coverage().filters.len(),
        trace.coverage().gaps.len(),
    ];
    assert_eq!(kept, [1 << 16; 4]);

    bytes.truncate(HEADER_LEN);
    let endless = [[0xff; 9].as_slice(), &[1]].concat();
    bytes.extend(section(
        *b"DUTY",
        &[&[0], &endless[..], &endless[..], &[0]].concat(),
    ));
    bytes.extend(section(*b"SUPP", &[0, 0, 9, 1, 3, 0, 0]));
    let trace = Trace::read(bytes.as_slice()).unwrap();
    assert_eq!(trace.coverage().duty[0].until, Ticks(u64::MAX));
    assert_eq!(trace.coverage().suppressions[0].until, Some(Ticks(3)));
    bytes.extend(section(*b"FILT", &[0, 0, 0xff, 0xff, 0x7f]));
    let error = refused(&bytes);
    assert!(error.contains("the maximum is 65536"), "{error}");
}

#[test]
fn a_file_cut_at_any_byte_gives_everything_before_the_cut() {
    let whole = sample();
    let (all, _) = items(whole).unwrap();
    let all_events = events(&all);
    let mut before = 0;
    for cut in 0..whole.len() {
        let result = items(&whole[..cut]);
        if cut < HEADER_LEN {
            assert!(
                matches!(result, Err(ReadError::TooShort { len }) if len == cut),
                "{result:?}"
            );
            continue;
        }
        let (read, completeness) = result.unwrap();
        let at = cut as u64;
        assert!(
            [Completeness::Cut { at }, Completeness::Unfinished { at }].contains(&completeness),
            "cut at {cut}: {completeness:?}"
        );
        let tables = read.iter().filter(|item| !matches!(item, Item::Block(_)));
        let expected = all.iter().filter(|item| !matches!(item, Item::Block(_)));
        assert!(
            tables
                .zip(expected)
                .all(|(read, expected)| read == expected),
            "cut at {cut}"
        );
        let read_events = events(&read);
        assert_eq!(read_events, all_events[..read_events.len()], "cut at {cut}");
        assert!(read_events.len() >= before, "cut at {cut}");
        before = read_events.len();
        if let Some(Item::Block(block)) = read.last() {
            let last = block.events().last().unwrap().unwrap();
            assert_eq!(
                block.last, last.ticks,
                "the totals of a cut block are its own"
            );
        }
    }
    assert_eq!(before, all_events.len());
}

#[test]
fn each_event_is_there_as_soon_as_its_last_byte_is() {
    let events = [
        call(0, 1, Enter),
        call(100, 2, Enter),
        call(100_000, 2, Exit),
        lost(1 << 40, 3),
    ];
    let block = blocks(0, &events, events.len()).remove(0);
    let mut writer = Writer::new(Vec::new()).unwrap();
    let begin = writer.written() as usize;
    writer.block(&block).unwrap();
    let bytes = writer.into_inner();
    let payload = bytes.len() - 4 - block.encoded_len();
    assert!(payload > begin);
    // 2 bytes: head, function. 3: longer head. 3: exit. The loss: an advance of 8, its head, byte
    // and number.
    for (len, expected) in [
        (1, 0),
        (2, 1),
        (4, 1),
        (5, 2),
        (7, 2),
        (8, 3),
        (18, 3),
        (19, 4),
    ] {
        let (read, _) = items(&bytes[..payload + len]).unwrap();
        assert_eq!(
            self::events(&read),
            events[..expected],
            "{len} bytes of the block"
        );
    }
}

#[test]
fn rewriting_changes_nothing_but_the_order_of_sections() {
    let trace = Trace::read(sample()).unwrap();
    let again = Trace::read(trace.write(Vec::new(), &[]).unwrap().as_slice()).unwrap();
    assert_eq!(again.functions(), trace.functions());
    assert_eq!(again.blocks(), trace.blocks());
    assert_eq!(again.coverage().losses, trace.coverage().losses);
    assert_eq!(again.clock(), trace.clock());
    assert_eq!(again.totals(), trace.totals());
    assert_eq!(
        again.write(Vec::new(), &[]).unwrap(),
        trace.write(Vec::new(), &[]).unwrap()
    );
}

#[test]
fn unknown_sections_and_unknown_trailing_fields_are_skipped() {
    let mut bytes = Writer::new(Vec::new()).unwrap().into_inner();
    bytes.extend(section(*b"NEWS", b"from a later writer"));
    bytes.extend(section(*b"LOST", &[3, 9, 0xff, 0xff]));
    bytes.extend(section(*b"END ", &[0, 9, 0]));
    let (read, completeness) = items(&bytes).unwrap();
    let end = Item::End(End {
        calls: 0,
        lost: 9,
        blocks: 0,
    });
    assert_eq!(
        read,
        [
            Item::Lost {
                thread: ThreadId(3),
                events: 9
            },
            end
        ]
    );
    assert_eq!(completeness, Completeness::Complete);
}

#[test]
fn a_second_thread_section_renames_the_thread() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&thread(0, 0)).unwrap();
    let mut renamed = thread(0, 0);
    renamed.name = "renamed".into();
    writer.add(&renamed).unwrap();
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    assert_eq!(trace.threads(), [renamed]);
}

#[test]
fn types_of_events_have_a_name_in_each_process() {
    let known = |process, number, name: &str| EventType {
        process: ProcessId(process),
        number,
        name: name.to_owned(),
    };
    let mut writer = Writer::new(Vec::new()).unwrap();
    for process in 0..3 {
        writer.add(&thread(process, process)).unwrap();
    }
    for (process, number, name) in [(1, 7, "b"), (0, 7, "a"), (0, u16::MAX, ""), (1, 7, "c")] {
        writer.add(&known(process, number, name)).unwrap();
    }
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    let trace = Trace::read(trace.write(Vec::new(), &[]).unwrap().as_slice()).unwrap();
    let expected = [known(0, 7, "a"), known(0, u16::MAX, ""), known(1, 7, "c")];
    assert_eq!(trace.event_types(), expected);
    for (thread, number, name) in [
        (0, 7, Some("a")),
        (1, 7, Some("c")),
        (0, u16::MAX, Some("")),
        (0, 8, None),
        (2, 7, None),
    ] {
        assert_eq!(trace.event_type(ThreadId(thread), number), name);
    }
    let mut bytes = Writer::new(Vec::new()).unwrap().into_inner();
    bytes.extend(section(*b"ETYP", &[0, 0x80, 0x80, 0x04, 1, b'a']));
    let error = items(&bytes).unwrap_err().to_string();
    assert!(error.contains("65536 does not fit into 16 bits"), "{error}");
}

#[test]
fn ids_with_gaps_are_found() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    for id in [9, 2, u32::MAX] {
        writer.add(&function(id & 0xff, 0, "f")).unwrap();
    }
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    for (id, found) in [(2, true), (9, true), (255, true), (0, false), (3, false)] {
        let id = xray_trace::model::FunctionId(id);
        assert_eq!(
            trace.function(id).map(|function| function.id),
            found.then_some(id)
        );
    }
    assert_eq!(trace.function_name(xray_trace::model::FunctionId(3)), "#3");
}

fn section(kind: [u8; 4], payload: &[u8]) -> Vec<u8> {
    let mut bytes = kind.to_vec();
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(payload);
    bytes.extend(crc32fast::hash(&bytes).to_le_bytes());
    bytes
}

fn refused(bytes: &[u8]) -> String {
    Trace::read(bytes).map(|_| ()).unwrap_err().to_string()
}

#[test]
fn errors_name_their_place() {
    let begin = Writer::new(Vec::new()).unwrap().into_inner();
    let check = |more: &[u8], expected: &str| {
        assert_eq!(refused(&[&begin, more].concat()), expected);
    };
    assert_eq!(
        refused(b"\x7fELF\x02\x01\x01\x00 and so on and on"),
        r"not a trace: the file begins with \x7fELF\x02\x01\x01\x00, not with \x89XTRACE\n"
    );
    assert_eq!(
        refused(&begin[..9]),
        "not a trace: the file has 9 bytes, but its header needs 16 bytes"
    );
    let mut damaged = begin.clone();
    damaged[10] = 1;
    assert!(refused(&damaged).starts_with("the file header is damaged: checksum 0x"));
    let mut later = begin[..12].to_vec();
    later[8] = 2;
    later.extend(crc32fast::hash(&later).to_le_bytes());
    assert_eq!(
        refused(&later),
        "the trace has format version 2, and this program reads version 1"
    );
    check(
        b"FUNC\xff\xff\xff\xff",
        "section FUNC at byte 16: its length is 4294967295 bytes, but the maximum is 16777216",
    );
    check(
        &section(*b"LOST", &[0xff; 11]),
        "section LOST, byte 24 of the file: thread: the number does not fit into 64 bits",
    );
    check(
        &section(*b"LOST", &[1]),
        "section LOST, byte 25 of the file: events: the section ends inside this field",
    );
    check(
        &section(*b"THRD", &[0xff, 0xff, 0xff, 0xff, 0x7f]),
        "section THRD, byte 24 of the file: id: 34359738367 does not fit into 32 bits",
    );
    check(
        &section(*b"THRD", &[0, 0, 0, 2, b'a', 0xff]),
        "section THRD, byte 27 of the file: name: not UTF-8",
    );
    check(
        &section(*b"THRD", &[0, 0, 0, 0xff, 0xff, 0x7f]),
        "section THRD, byte 27 of the file: name: its length is 2097151 bytes, but the maximum is \
         65536",
    );
    check(
        &section(*b"MODL", &[0, 0, 0, 7]),
        "section MODL, byte 27 of the file: build id: 7 is neither 0 (absent) nor 1 (present)",
    );
    let module = section(*b"MODL", &[4, 0, 0, 0, 0]);
    check(
        &[module.clone(), module.clone()].concat(),
        "section MODL, byte 33 of the file: the id 4 occurs twice",
    );
    let mut flipped = module;
    flipped[8] ^= 1;
    assert!(
        refused(&[begin.clone(), flipped].concat())
            .starts_with("section MODL at byte 16 is damaged: checksum 0x")
    );
    // A block that is cut, and whose content is invalid.
    check(
        b"BLCK\x40\0\0\0\x00\x00\x00\x00\x00\x00",
        "section BLCK, byte 29 of the file: the event at byte 0 of the block omits its function, \
         but no function is expected",
    );
}

#[test]
fn too_long_a_block_is_refused_before_anything_is_written() {
    let mut block = blocks(0, &[call(0, 0, Enter)], 1).remove(0);
    block.payload = vec![0; 17 << 20].into();
    let mut writer = Writer::new(Vec::new()).unwrap();
    let error = writer.block(&block).unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert_eq!(writer.get_ref().len(), HEADER_LEN);
}

#[test]
fn too_long_a_text_is_cut_at_a_character() {
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer
        .add(&function(0, 0, &format!("x{}", "ü".repeat(40_000))))
        .unwrap();
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    assert_eq!(trace.functions()[0].name.len(), 65_535);
}

#[test]
fn a_promised_length_takes_no_memory() {
    // Every section claims 16 MiB, and has one byte.
    let mut bytes = Writer::new(Vec::new()).unwrap().into_inner();
    bytes.extend(b"NEWS\0\0\0\x01.");
    assert_eq!(items(&bytes).unwrap().1, Completeness::Cut { at: 25 });
}

#[test]
fn sections_are_shown_as_text() {
    assert_eq!(SectionKind::END.to_string(), "END ");
    assert_eq!(
        SectionKind([0, b'A', 0xff, b'\n']).to_string(),
        r"\x00A\xff\n"
    );
}

proptest! {
    #[test]
    fn files_survive_the_round_trip(threads in proptest::collection::vec(any_events(0..60), 0..4)) {
        let slices = threads.iter().map(Vec::as_slice).collect::<Vec<_>>();
        let trace = trace(&["a", "b"], &slices);
        let by_thread = trace.blocks_by_thread();
        for (id, expected) in (0..).zip(&threads) {
            let blocks = by_thread.get(&ThreadId(id)).cloned().unwrap_or_default();
            let read = blocks.iter().flat_map(|block| block.events());
            prop_assert_eq!(&read.map(|event| event.unwrap()).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn mutated_files_never_panic(
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        repair in any::<bool>(),
    ) {
        let mut bytes = sample().to_vec();
        for (index, byte) in changes {
            let at = index.index(bytes.len());
            bytes[at] = byte;
        }
        if repair {
            repair_checksums(&mut bytes);
        }
        if let Ok(trace) = Trace::read(bytes.as_slice()) {
            for block in trace.blocks() {
                let _ = block.events().count();
            }
            let _ = trace.write(Vec::new(), &[]).unwrap();
        }
    }

    #[test]
    fn any_bytes_after_a_header_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut file = Writer::new(Vec::new()).unwrap().into_inner();
        file.extend(bytes);
        let _ = Trace::read(file.as_slice());
    }
}

/// Corrects the checksums, as long as the frames lead from section to section.
fn repair_checksums(bytes: &mut [u8]) {
    let header = crc32fast::hash(&bytes[..12]);
    bytes[12..16].copy_from_slice(&header.to_le_bytes());
    let mut at = HEADER_LEN;
    while let Some(len) = bytes.get(at + 4..at + 8) {
        let len = u32::from_le_bytes(len.try_into().unwrap()) as usize;
        let end = at + 8 + len;
        if end + 4 > bytes.len() {
            break;
        }
        let checksum = crc32fast::hash(&bytes[at..end]);
        bytes[end..end + 4].copy_from_slice(&checksum.to_le_bytes());
        at = end + 4;
    }
}
