//! User events (custom and typed events) through blocks, analyses and sinks.

use proptest::prelude::*;
use xray_trace::analysis::{Filter, Order, Shown, Step, Steps, Tree, TreeLine};
use xray_trace::container::{BlockEncoder, MAX_DATA_LEN, Writer};
use xray_trace::model::CallKind::{Enter, Exit};
use xray_trace::model::{DataKind, EventBody, FunctionId, ThreadId, Ticks, Trace};
use xray_trace::sink::{Chrome, Sink as _};

use crate::common::{anchor, function, module, process, thread};

/// A thread that calls a function and records user events within and after it.
fn talkative(user_event: &[(DataKind, &[u8])]) -> Trace {
    let mut encoder = BlockEncoder::new(ThreadId(0));
    encoder.push_cpu(Ticks(0), 3);
    encoder.push_call(Ticks(1), FunctionId(0), Enter, None);
    for (at, (kind, data)) in (2..).zip(user_event) {
        assert_eq!(encoder.push_data(Ticks(at), *kind, data), 0);
    }
    encoder.push_call(Ticks(1000), FunctionId(0), Exit, None);
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    writer.add(&function(0, 0, "talk")).unwrap();
    writer.add(&thread(0, 0)).unwrap();
    writer.add(&anchor(0, 0)).unwrap();
    writer.add(&anchor(1000, 1000)).unwrap();
    writer.block(&encoder.finish().unwrap()).unwrap();
    let totals = writer.totals();
    writer.end(&totals).unwrap();
    Trace::read(writer.into_inner().as_slice()).unwrap()
}

fn heard(trace: &Trace) -> Vec<(DataKind, Vec<u8>, u64, usize)> {
    let mut heard = Vec::new();
    for mut steps in Steps::of_threads(trace) {
        while let Some(step) = steps.next() {
            if let Step::Data(user_event) = step {
                let data = steps.data(&user_event).to_vec();
                heard.push((user_event.kind, data, user_event.ns, user_event.depth));
            }
        }
    }
    heard
}

const WORDS: [(DataKind, &[u8]); 4] = [
    (DataKind::Custom, b"begin"),
    (DataKind::Typed(7), b"\xff\x00"),
    (DataKind::Custom, b""),
    (DataKind::Typed(u16::MAX), b"end"),
];

#[test]
fn user_events_are_in_their_place() {
    let trace = talkative(&WORDS);
    let expected: Vec<_> = (2..)
        .zip(WORDS)
        .map(|(at, (kind, data))| (kind, data.to_vec(), at, 1))
        .collect();
    assert_eq!(heard(&trace), expected);
    assert_eq!(trace.totals().calls, 2);
    let cpus: Vec<_> = trace.blocks()[0]
        .events()
        .filter_map(|event| match event.unwrap().body {
            EventBody::Cpu { cpu } => Some(cpu),
            _ => None,
        })
        .collect();
    assert_eq!(cpus, [3]);
}

#[test]
fn the_tree_holds_it_between_begin_and_end() {
    let trace = talkative(&WORDS[..2]);
    let filter = Filter::default();
    let lines: Vec<_> = Tree::new(&trace, &filter, Shown::default(), Order::ByTime).collect();
    assert!(matches!(lines[0], TreeLine::Begin(_)), "{lines:?}");
    assert!(
        matches!(&lines[1], TreeLine::Data { data, .. } if **data == *b"begin"),
        "{lines:?}"
    );
    assert!(matches!(lines[3], TreeLine::End(_)), "{lines:?}");
}

#[test]
fn chrome_shows_it_as_text() {
    let mut out = Vec::new();
    let report = Chrome.write(&talkative(&WORDS), &mut out).unwrap();
    let processors = ("processors on which threads ran".to_owned(), 1);
    assert_eq!(report.left_out, [processors]);
    let json: serde_json::Value = serde_json::from_slice(&out).unwrap();
    let events = json["traceEvents"].as_array().unwrap();
    let user_event: Vec<_> = events
        .iter()
        .filter(|event| event["ph"] == "i")
        .map(|event| (event["name"].clone(), event["args"]["data"].clone()))
        .collect();
    assert_eq!(user_event[0], ("custom event".into(), "begin".into()));
    assert_eq!(user_event[1], ("typed event 7".into(), "\\xff\\x00".into()));
}

#[test]
fn more_than_fits_is_cut_and_reported() {
    let mut encoder = BlockEncoder::new(ThreadId(0));
    let data = vec![1; MAX_DATA_LEN + 5];
    assert_eq!(encoder.push_data(Ticks(0), DataKind::Custom, &data), 5);
    let block = encoder.finish().unwrap();
    let mut events = block.events();
    let Some(Ok(event)) = events.next() else {
        panic!("no event");
    };
    let EventBody::Data { data, .. } = event.body else {
        panic!("{event:?}");
    };
    assert_eq!(events.data(data).len(), MAX_DATA_LEN);
    assert!(events.next().is_none());
}

proptest! {
    #[test]
    fn any_words_come_back(words in proptest::collection::vec(
        (any::<Option<u16>>(), proptest::collection::vec(any::<u8>(), 0..300)), 0..40)
    ) {
        let words: Vec<_> = words
            .iter()
            .map(|(kind, data)| (kind.map_or(DataKind::Custom, DataKind::Typed), data.as_slice()))
            .collect();
        let back: Vec<_> = heard(&talkative(&words))
            .into_iter()
            .map(|(kind, data, ..)| (kind, data))
            .collect();
        let words: Vec<_> = words.into_iter().map(|(kind, data)| (kind, data.to_vec())).collect();
        prop_assert_eq!(back, words);
    }
}

/// A user event of a live target has a function and a true size; in foreign logs it has neither.
#[test]
fn the_place_and_size_of_user_events_come_back() {
    let rows: [(Option<FunctionId>, u32, &[u8]); 5] = [
        (Some(FunctionId(0)), 5, b"whole"),
        (Some(FunctionId(u32::MAX)), u32::MAX, b"cut"),
        (None, 0, b""),
        (Some(FunctionId(7)), 9000, b""),
        // A size below the number of bytes is invalid.
        (None, 1, b"more"),
    ];
    let mut encoder = BlockEncoder::new(ThreadId(0));
    for (at, (function, size, data)) in (1..).zip(rows) {
        let cut =
            encoder.push_user_event(Ticks(at << 40), DataKind::Typed(3), function, size, data);
        assert_eq!(cut, 0);
    }
    encoder.push_data(Ticks(6 << 40), DataKind::Custom, b"foreign");
    let block = encoder.finish().unwrap();
    assert_eq!(block.calls, 0);
    let mut events = block.events();
    for (at, (function, size, bytes)) in (1..).zip(rows) {
        let event = events.next().unwrap().unwrap();
        let EventBody::Data { kind, data } = event.body else {
            panic!("{event:?}")
        };
        assert_eq!((event.ticks, kind), (Ticks(at << 40), DataKind::Typed(3)));
        assert_eq!((data.function(), events.data(data)), (function, bytes));
        assert_eq!(data.size(), u64::from(size).max(bytes.len() as u64));
        assert_eq!(data.is_cut(), size as usize > bytes.len());
    }
    let event = events.next().unwrap().unwrap();
    let EventBody::Data { data, .. } = event.body else {
        panic!("{event:?}")
    };
    assert_eq!(
        (data.function(), data.size(), data.is_cut()),
        (None, 7, false)
    );
}
