//! FDRBlockIndexerTest: the buffers of a log, and their threads.

use std::collections::BTreeMap;

use xray_trace::llvm::Mode;
use xray_trace::llvm::fdr::{Events, Record, blocks};

use crate::common::*;

/// Three buffers, of two threads of a process. A buffer's extents do not count as one of its
/// records.
#[test]
fn index_blocks_v3() {
    let block = |tid, cpu, tsc| {
        [
            Record::BufferExtents { size: 80 },
            Record::NewBuffer { tid },
            Record::WallTime {
                seconds: 1,
                micros: 2,
            },
            Record::Pid { pid: 1 },
            Record::NewCpu { cpu, tsc },
            enter(1, 1),
            exit(1, 100),
        ]
    };
    let records = [block(1, 1, 2), block(1, 1, 200), block(2, 2, 2)].concat();
    let bytes = log(header(3), &records);
    let list = blocks(&mut Events::new(&bytes[..], Mode::Strict).unwrap()).unwrap();
    let mut index = BTreeMap::<_, Vec<_>>::new();
    for block in &list {
        assert_eq!((block.events, block.buffer.wall), (2, Some((1, 2))));
        let owner = (block.buffer.pid, block.buffer.tid);
        index.entry(owner).or_default().push(block.buffer.first);
    }
    let expected = [
        ((Some(1), Some(1)), vec![Some(2), Some(200)]),
        ((Some(1), Some(2)), vec![Some(2)]),
    ];
    assert_eq!(index, expected.into());
    let events = all_events(&bytes);
    let seen = events.iter().map(|event| (event.tid, event.tsc, event.cpu));
    assert_eq!(
        seen.collect::<Vec<_>>(),
        [
            (1, 3, 1),
            (1, 103, 1),
            (1, 201, 1),
            (1, 301, 1),
            (2, 3, 2),
            (2, 103, 2)
        ]
    );
    assert!(events.iter().all(|event| event.pid == Some(1)));
}
