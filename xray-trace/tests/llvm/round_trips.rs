//! Written logs come back unchanged, and no bytes make a reader panic.

use proptest::prelude::*;
use xray_trace::llvm::fdr::{Events, FunctionKind, MAX_FUNCTION_ID, Reader, Record, Writer};
use xray_trace::llvm::{ByteOrder, Mode};

use crate::common::*;

pub(crate) fn any_event() -> impl Strategy<Value = Record<Vec<u8>>> {
    let kind = prop_oneof![
        Just(FunctionKind::Enter),
        Just(FunctionKind::Exit),
        Just(FunctionKind::TailExit),
        Just(FunctionKind::EnterArg)
    ];
    let data = || proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        (kind, 0..=MAX_FUNCTION_ID, any::<u32>()).prop_map(|(kind, function, delta)| {
            Record::Function {
                kind,
                function,
                delta,
            }
        }),
        (any::<u16>(), any::<u64>()).prop_map(|(cpu, tsc)| Record::NewCpu { cpu, tsc }),
        any::<u64>().prop_map(|tsc| Record::TscWrap { tsc }),
        any::<u64>().prop_map(|value| Record::CallArgument { value }),
        any::<i32>().prop_map(|tid| Record::NewBuffer { tid }),
        any::<i32>().prop_map(|pid| Record::Pid { pid }),
        (any::<u64>(), any::<u32>())
            .prop_map(|(seconds, micros)| Record::WallTime { seconds, micros }),
        (any::<i32>(), data()).prop_map(|(delta, data)| Record::CustomEventDelta { delta, data }),
        (any::<i32>(), any::<u16>(), data()).prop_map(|(delta, event_type, data)| {
            Record::TypedEvent {
                delta,
                event_type,
                data,
            }
        }),
    ]
}

pub(crate) fn written(
    order: ByteOrder,
    from_low: bool,
    buffers: &[Vec<Record<Vec<u8>>>],
) -> Vec<u8> {
    let mut header = header(5);
    header.order = order;
    let mut writer = Writer::new(Vec::new(), header).unwrap();
    if from_low {
        writer = writer.with_bits_from_low();
    }
    for records in buffers {
        let size = records.iter().map(|record| match record {
            Record::Function { .. } => 8,
            Record::CustomEventDelta { data, .. } | Record::TypedEvent { data, .. } => {
                16 + data.len() as u64
            }
            _ => 16,
        });
        let size = size.sum();
        writer.record(&Record::BufferExtents { size }).unwrap();
        for record in records {
            let leased = record.clone();
            // The writer takes borrowed payloads.
            match &leased {
                Record::CustomEventDelta { delta, data } => {
                    writer.record(&Record::CustomEventDelta {
                        delta: *delta,
                        data: &data[..],
                    })
                }
                Record::TypedEvent {
                    delta,
                    event_type,
                    data,
                } => writer.record(&Record::TypedEvent {
                    delta: *delta,
                    event_type: *event_type,
                    data: &data[..],
                }),
                _ => writer.record(&leased.map(|_| &[][..])),
            }
            .unwrap();
        }
    }
    writer.into_inner()
}

proptest! {
    #[test]
    fn records_come_back(
        buffers in proptest::collection::vec(proptest::collection::vec(any_event(), 1..30), 0..6),
        big in any::<bool>(),
    ) {
        let order = if big { ByteOrder::Big } else { ByteOrder::Little };
        let (seen, error) = records(&written(order, false, &buffers));
        prop_assert!(error.is_none(), "{:?}", error);
        let seen = seen.into_iter().map(|(_, record)| record);
        let seen = seen.filter(|record| !matches!(record, Record::BufferExtents { .. }));
        prop_assert!(seen.eq(buffers.into_iter().flatten()));
    }

    #[test]
    fn no_bytes_make_the_readers_fail_or_loop(
        version in 1_u16..=5,
        buffers in proptest::collection::vec(proptest::collection::vec(any_event(), 1..10), 0..4),
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
        cut in any::<prop::sample::Index>(),
    ) {
        let mut bytes = written(ByteOrder::Little, false, &buffers);
        bytes[0] = u8::try_from(version).unwrap();
        let len = bytes.len() - 32;
        if len > 0 {
            for (at, byte) in changes {
                bytes[32 + at.index(len)] = byte;
            }
            bytes.truncate(32 + cut.index(len));
        }
        let mut reader = Reader::new(&bytes[..], Mode::Salvage).unwrap();
        let mut count = 0;
        let mut last = 0;
        while let Some(item) = reader.next().unwrap() {
            prop_assert!(item.offset >= last);
            last = item.offset + 1;
            count += 1;
        }
        prop_assert!(count <= len / 8);
        let mut events = Events::new(&bytes[..], Mode::Salvage).unwrap();
        let (all, error) = rest(&mut events);
        prop_assert!(error.is_none());
        prop_assert!(all.len() <= count);
    }
}
