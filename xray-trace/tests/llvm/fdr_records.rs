//! XRayFDRTest: the same buffers listed, checked and printed.

use xray_trace::llvm::fdr::verify::Verifier;
use xray_trace::llvm::fdr::{BlockPrinter, Events, Kind, Reader, Record, blocks};
use xray_trace::llvm::{Error, Mode};

use crate::common::*;

/// A buffer of version 5 with all kinds of records.
fn block(tid: i32) -> Vec<Rec> {
    let events = [
        enter(1, 1),
        exit(1, 100),
        Record::CustomEventDelta {
            delta: 4,
            data: &b"XRAY"[..],
        },
        Record::TypedEvent {
            delta: 4,
            event_type: 2,
            data: &b"XRAY"[..],
        },
    ];
    buffer(tid, 2, &events)
}

#[test]
fn builder_and_block_indexer() {
    let bytes = log(header(5), &[block(1), block(1), block(2)].concat());
    let list = blocks(&mut Events::new(&bytes[..], Mode::Strict).unwrap()).unwrap();
    let seen = list.iter().map(|block| {
        let buffer = block.buffer;
        (buffer.pid, buffer.tid, block.events)
    });
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [1, 1, 2].map(|tid| (Some(11), Some(tid), 4))
    );
    // Upstream's buffers have no processor at their begin. Without one there is no time to count
    // from.
    let mut without = block(1);
    without.retain(|record| record.kind() != Kind::NewCpuId);
    without[0] = extents(&without[1..]);
    let (seen, error) = events(&log(header(5), &without));
    assert!(seen.is_empty());
    assert!(matches!(error, Some(Error::Order { .. })), "{error:?}");
}

#[track_caller]
fn verify(records: &[Rec]) {
    let mut verifier = Verifier::default();
    for record in records {
        verifier.step(record.kind()).unwrap();
    }
    verifier.finish().unwrap();
}

#[test]
fn builder_and_block_verifier() {
    verify(&buffer(1, 2, &[]));
    verify(&block(1));
}

#[test]
fn index_and_verify_blocks() {
    let bytes = log(header(5), &[block(1), block(1), block(1)].concat());
    let list = blocks(&mut Events::new(&bytes[..], Mode::Strict).unwrap()).unwrap();
    assert_eq!(list.len(), 3);
    let mut reader = Reader::new(&bytes[..], Mode::Strict).unwrap();
    let mut out = Vec::new();
    let mut printer = BlockPrinter::default();
    let mut verifier = Verifier::default();
    while let Some(item) = reader.next().unwrap() {
        if item.record.kind() == Kind::BufferExtents && item.offset > 32 {
            verifier.finish().unwrap();
        }
        verifier.step(item.record.kind()).unwrap();
        printer.print(&item.record, &mut out).unwrap();
    }
    verifier.finish().unwrap();
    let text = String::from_utf8(out).unwrap();
    assert_eq!(text.matches("[New Block]").count(), 3);
    assert_eq!(
        text.matches("<Typed Event: delta = +4, type = 2, size = 4, data = 'XRAY'>")
            .count(),
        3
    );
}
